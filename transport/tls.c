/* TLS settings: reads certificate, key and CA, checks what can be known before the first connection, and makes NNG's
 * configurations of them.
 *
 * Each connection gets a configuration of its own: mbedTLS 2.28 fills a table inside the key's curve at first use without a
 * lock (MBEDTLS_ECP_FIXED_POINT_OPTIM in ecp.h), so two handshakes on two threads must not share one. */
#include <stdlib.h>
#include <string.h>

#include <mbedtls/error.h>
#include <mbedtls/pk.h>
#include <mbedtls/x509_crt.h>
#include <nng/nng.h>
#include <nng/supplemental/tls/tls.h>

#include "core/file.h"
#include "transport/internal.h"

enum { PEM_LIMIT = 1 << 20 };

static tn_code mbed_fail(tn_err *err, int rc, const char *path, const char *what) {
    char text[128];

    mbedtls_strerror(rc, text, sizeof(text));
    return tn_fail(err, TN_EAUTH, "%s: %s (%s)", path, what, text);
}

static tn_code read_pem(char **out, const char *path, tn_err *err) {
    uint8_t *data = NULL;
    size_t size = 0;
    tn_code code = tn_file_read(path, PEM_LIMIT, &data, &size, err);

    if (code == TN_OK && memchr(data, '\0', size) != NULL) {
        code = tn_fail(err, TN_EAUTH, "%s: not a PEM file", path);
        free(data);
        data = NULL;
    }
    *out = (char *)data;
    return code;
}

static tn_code check_certs(mbedtls_x509_crt *crt, const char *pem, const char *path, tn_err *err) {
    int rc = mbedtls_x509_crt_parse(crt, (const unsigned char *)pem, strlen(pem) + 1);

    if (rc < 0)
        return mbed_fail(err, rc, path, "no certificate in PEM form can be read from it");
    if (rc > 0)
        return tn_fail(err, TN_EAUTH, "%s: %d of its certificates cannot be read", path, rc);
    if (mbedtls_x509_time_is_past(&crt->valid_to))
        return tn_fail(err, TN_EAUTH, "%s: the certificate expired on %04d-%02d-%02d: issue a new one", path,
                       crt->valid_to.year, crt->valid_to.mon, crt->valid_to.day);
    if (mbedtls_x509_time_is_future(&crt->valid_from))
        return tn_fail(err, TN_EAUTH, "%s: the certificate is valid from %04d-%02d-%02d %02d:%02d UTC on only: is the clock "
                       "of this machine right?", path, crt->valid_from.year, crt->valid_from.mon, crt->valid_from.day,
                       crt->valid_from.hour, crt->valid_from.min);
    return TN_OK;
}

static tn_code check(const tni_tls *t, const char *key_path, tn_err *err) {
    mbedtls_x509_crt cert, ca;
    mbedtls_pk_context key;
    tn_code code;
    int rc;

    mbedtls_x509_crt_init(&cert);
    mbedtls_x509_crt_init(&ca);
    mbedtls_pk_init(&key);
    code = check_certs(&cert, t->cert, t->cert_path, err);
    if (code == TN_OK)
        code = check_certs(&ca, t->ca, t->ca_path, err);
    if (code != TN_OK)
        goto out;
    rc = mbedtls_pk_parse_key(&key, (const unsigned char *)t->key, strlen(t->key) + 1, NULL, 0);
    if (rc == MBEDTLS_ERR_PK_PASSWORD_REQUIRED)
        code = tn_fail(err, TN_EAUTH, "%s: the key is encrypted; store it without a pass phrase, mode 0600", key_path);
    else if (rc != 0)
        code = mbed_fail(err, rc, key_path, "no private key in PEM form can be read from it");
    else if (mbedtls_pk_check_pair(&cert.pk, &key) != 0)
        code = tn_fail(err, TN_EAUTH, "%s: the key does not belong to the certificate %s", key_path, t->cert_path);
out:
    mbedtls_pk_free(&key);
    mbedtls_x509_crt_free(&ca);
    mbedtls_x509_crt_free(&cert);
    return code;
}

tn_code tni_tls_load(tni_tls **out, const tn_tx_opts *opts, const char *url, const char *name, tn_err *err) {
    tni_tls *t = NULL;
    tn_code code;

    *out = NULL;
    if (opts == NULL || opts->cert == NULL || opts->key == NULL || opts->ca == NULL)
        return tn_fail(err, TN_EINVAL, "%s: TLS needs a certificate, its key and the CA's certificate", url);
    t = calloc(1, sizeof(*t));
    if (t == NULL)
        return tn_fail(err, TN_ENOMEM, "%s: out of memory", url);
    atomic_init(&t->refs, 1);
    t->cert_path = strdup(opts->cert);
    t->ca_path = strdup(opts->ca);
    t->name = name != NULL ? strdup(name) : NULL;
    if (t->cert_path == NULL || t->ca_path == NULL || (name != NULL && t->name == NULL))
        code = tn_fail(err, TN_ENOMEM, "%s: out of memory", url);
    else
        code = read_pem(&t->cert, opts->cert, err);
    if (code == TN_OK)
        code = read_pem(&t->key, opts->key, err);
    if (code == TN_OK)
        code = read_pem(&t->ca, opts->ca, err);
    if (code == TN_OK)
        code = check(t, opts->key, err);
    if (code != TN_OK) {
        tni_tls_unref(t);
        t = NULL;
    }
    *out = t;
    return code;
}

tni_tls *tni_tls_ref(tni_tls *t) {
    if (t != NULL)
        atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void tni_tls_unref(tni_tls *t) {
    if (t == NULL || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (t->key != NULL)
        explicit_bzero(t->key, strlen(t->key));
    free(t->key);
    free(t->cert);
    free(t->ca);
    free(t->cert_path);
    free(t->ca_path);
    free(t->name);
    free(t);
}

tn_code tni_tls_config(const tni_tls *t, struct nng_tls_config **out, tn_err *err) {
    nng_tls_config *cfg = NULL;
    int rv = nng_tls_config_alloc(&cfg, t->name != NULL ? NNG_TLS_MODE_CLIENT : NNG_TLS_MODE_SERVER);

    if (rv == 0)
        rv = nng_tls_config_auth_mode(cfg, NNG_TLS_AUTH_MODE_REQUIRED);
    if (rv == 0)
        rv = nng_tls_config_ca_chain(cfg, t->ca, NULL);
    if (rv == 0)
        rv = nng_tls_config_own_cert(cfg, t->cert, t->key, NULL);
    if (rv == 0 && t->name != NULL)
        rv = nng_tls_config_server_name(cfg, t->name);
    if (rv != 0) {
        if (cfg != NULL)
            nng_tls_config_free(cfg);
        return tn_fail(err, rv == NNG_ENOMEM ? TN_ENOMEM : TN_EAUTH, "%s: TLS cannot be set up with it (%s)", t->cert_path,
                       nng_strerror(rv));
    }
    *out = cfg;
    return TN_OK;
}
