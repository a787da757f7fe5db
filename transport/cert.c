/* Certificates: a small CA, written by mbedTLS's X.509 writer (RFC 5280). Keys are ECDSA on P-256, signatures with SHA-256.
 *
 * mbedTLS 2.28 writes no alternative names, so the extension's DER is made here, and it compares the host of a URL with DNS
 * names only, so that an address stands in the certificate twice: as the address it is, and as a DNS name of the same text. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <mbedtls/asn1write.h>
#include <mbedtls/ctr_drbg.h>
#include <mbedtls/ecp.h>
#include <mbedtls/entropy.h>
#include <mbedtls/error.h>
#include <mbedtls/oid.h>
#include <mbedtls/pem.h>
#include <mbedtls/pk.h>
#include <mbedtls/sha256.h>
#include <mbedtls/x509_crt.h>

#include "core/file.h"
#include "core/random.h"
#include "transport/internal.h"

enum { MAX_HOSTS = 32, MAX_HOST = 253, DER_LIMIT = 32 * 1024, KEY_LIMIT = 4096, FILE_LIMIT = 1 << 20, PATH_LIMIT = 4096 };
enum { EARLY = 5 * 60, DAY = 24 * 60 * 60 }; /* seconds; clocks differ */

static tn_code mbed_fail(tn_err *err, int rc, const char *what) {
    char text[128];

    mbedtls_strerror(rc, text, sizeof(text));
    return tn_fail(err, rc == MBEDTLS_ERR_PK_ALLOC_FAILED || rc == MBEDTLS_ERR_X509_ALLOC_FAILED ? TN_ENOMEM : TN_EINTERNAL,
                   "%s: %s", what, text);
}

/* ---- what is asked for --------------------------------------------------------------------------------------------- */

static bool name_ok(const char *s, size_t max) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    size_t n = s != NULL ? strlen(s) : 0;

    return n >= 1 && n <= max && strspn(s, allowed) == n;
}

static tn_code check_request(const char *name, int days, tn_err *err) {
    if (!name_ok(name, 64))
        return tn_fail(err, TN_EINVAL, "certificate: a name has 1 to 64 letters, digits, '.', '-' and '_', not \"%.80s\"",
                       name != NULL ? name : "");
    if (days < 1 || days > 3650)
        return tn_fail(err, TN_EINVAL, "certificate %s: it can be valid for 1 to 3650 days, not %d", name, days);
    return TN_OK;
}

/* The bytes of an address: 4, 16, or 0 when it is none. */
static size_t address_bytes(const char *host, uint8_t out[16]) {
    if (inet_pton(AF_INET, host, out) == 1)
        return 4;
    return inet_pton(AF_INET6, host, out) == 1 ? 16 : 0;
}

static tn_code check_hosts(const tn_cert_request *req, tn_err *err) {
    uint8_t address[16];

    if (req->server && req->nhosts == 0)
        return tn_fail(err, TN_EINVAL, "certificate %s: a server needs the names or addresses it is reached by", req->name);
    if (req->nhosts > MAX_HOSTS)
        return tn_fail(err, TN_EINVAL, "certificate %s: at most %d hosts, not %zu", req->name, MAX_HOSTS, req->nhosts);
    for (size_t i = 0; i < req->nhosts; i++)
        if (!name_ok(req->hosts[i], MAX_HOST) && address_bytes(req->hosts[i], address) == 0)
            return tn_fail(err, TN_EINVAL, "certificate %s: \"%.100s\" is no host name or address", req->name, req->hosts[i]);
    return TN_OK;
}

static tn_code check_absent(const char *path, tn_err *err) {
    struct stat st;

    if (lstat(path, &st) == 0)
        return tn_fail(err, TN_EBUSY, "%s exists already and is not overwritten: remove it or choose another name", path);
    return errno == ENOENT ? TN_OK : tn_fail_sys(err, TN_EIO, errno, "%s", path);
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

typedef struct writer {
    mbedtls_entropy_context entropy;
    mbedtls_ctr_drbg_context drbg;
    mbedtls_pk_context key;
    mbedtls_mpi serial;
    mbedtls_x509write_cert crt;
} writer;

static void writer_init(writer *w) {
    mbedtls_entropy_init(&w->entropy);
    mbedtls_ctr_drbg_init(&w->drbg);
    mbedtls_pk_init(&w->key);
    mbedtls_mpi_init(&w->serial);
    mbedtls_x509write_crt_init(&w->crt);
}

static void writer_release(writer *w) {
    mbedtls_x509write_crt_free(&w->crt);
    mbedtls_mpi_free(&w->serial);
    mbedtls_pk_free(&w->key);
    mbedtls_ctr_drbg_free(&w->drbg);
    mbedtls_entropy_free(&w->entropy);
}

static int set_times(mbedtls_x509write_cert *crt, int64_t from, int64_t to) {
    char text[2][32];
    time_t t[2] = {(time_t)from, (time_t)to};

    for (int i = 0; i < 2; i++) {
        struct tm tm;

        if (gmtime_r(&t[i], &tm) == NULL || strftime(text[i], sizeof(text[i]), "%Y%m%d%H%M%S", &tm) == 0)
            return MBEDTLS_ERR_X509_BAD_INPUT_DATA;
    }
    return mbedtls_x509write_crt_set_validity(crt, text[0], text[1]);
}

/* Fresh key and serial, and what CA and leaf certificates have in common. */
static tn_code writer_begin(writer *w, const char *name, int64_t from, int64_t to, tn_err *err) {
    uint8_t serial[16];
    char subject[80];
    tn_code code = tn_random_init(err);
    int rc;

    if (code != TN_OK)
        return code;
    tn_random_bytes(serial, sizeof(serial));
    serial[0] = (uint8_t)((serial[0] & 0x7f) | 0x40); /* positive, and always of the same length */
    snprintf(subject, sizeof(subject), "CN=%s", name);
    rc = mbedtls_ctr_drbg_seed(&w->drbg, mbedtls_entropy_func, &w->entropy, NULL, 0);
    if (rc == 0)
        rc = mbedtls_pk_setup(&w->key, mbedtls_pk_info_from_type(MBEDTLS_PK_ECKEY));
    if (rc == 0)
        rc = mbedtls_ecp_gen_key(MBEDTLS_ECP_DP_SECP256R1, mbedtls_pk_ec(w->key), mbedtls_ctr_drbg_random, &w->drbg);
    if (rc == 0)
        rc = mbedtls_mpi_read_binary(&w->serial, serial, sizeof(serial));
    if (rc == 0)
        rc = mbedtls_x509write_crt_set_serial(&w->crt, &w->serial);
    if (rc == 0)
        rc = mbedtls_x509write_crt_set_subject_name(&w->crt, subject);
    if (rc == 0)
        rc = set_times(&w->crt, from, to);
    mbedtls_x509write_crt_set_version(&w->crt, MBEDTLS_X509_CRT_VERSION_3);
    mbedtls_x509write_crt_set_md_alg(&w->crt, MBEDTLS_MD_SHA256);
    mbedtls_x509write_crt_set_subject_key(&w->crt, &w->key);
    return rc == 0 ? TN_OK : mbed_fail(err, rc, "certificate: the key cannot be made");
}

/* Signs with the issuer key that is set, and writes key_path (0600), then cert_path. */
static tn_code writer_finish(writer *w, const char *cert_path, const char *key_path, uint8_t *sha256, tn_err *err) {
    uint8_t *der = malloc(DER_LIMIT), *pem = malloc(2 * DER_LIMIT);
    uint8_t key[KEY_LIMIT];
    tn_part part;
    size_t n = 0;
    tn_code code;
    int rc;

    if (der == NULL || pem == NULL) {
        code = tn_fail(err, TN_ENOMEM, "certificate: out of memory");
        goto out;
    }
    rc = mbedtls_x509write_crt_set_subject_key_identifier(&w->crt);
    if (rc == 0)
        rc = mbedtls_x509write_crt_set_authority_key_identifier(&w->crt);
    if (rc == 0)
        rc = mbedtls_x509write_crt_der(&w->crt, der, DER_LIMIT, mbedtls_ctr_drbg_random, &w->drbg);
    if (rc > 0) { /* That many bytes, at the end of the buffer. */
        const uint8_t *at = der + DER_LIMIT - rc;
        size_t size = (size_t)rc;

        rc = mbedtls_pem_write_buffer("-----BEGIN CERTIFICATE-----\n", "-----END CERTIFICATE-----\n", at, size, pem,
                                      2 * DER_LIMIT, &n);
        if (rc == 0 && sha256 != NULL)
            rc = mbedtls_sha256_ret(at, size, sha256, 0);
    }
    if (rc == 0)
        rc = mbedtls_pk_write_key_pem(&w->key, key, sizeof(key));
    if (rc != 0) {
        code = mbed_fail(err, rc, "certificate: it cannot be written");
        goto out;
    }
    part = (tn_part){key, strlen((const char *)key)};
    code = tn_file_write_atomic(key_path, &part, 1, 0600, err);
    if (code != TN_OK)
        goto out;
    part = (tn_part){pem, n - 1}; /* without the NUL */
    code = tn_file_write_atomic(cert_path, &part, 1, 0644, err);
    if (code != TN_OK)
        unlink(key_path); /* A key without its certificate would only bar the next attempt. */
out:
    explicit_bzero(key, sizeof(key));
    free(der);
    free(pem);
    return code;
}

/* ---- the CA -------------------------------------------------------------------------------------------------------- */

static tn_code ca_paths(const char *dir, char cert[PATH_LIMIT], char key[PATH_LIMIT], tn_err *err) {
    if (dir == NULL || *dir == '\0' || strlen(dir) > PATH_LIMIT - 16)
        return tn_fail(err, TN_EINVAL, "certificate: the folder of the CA is not given or too long");
    snprintf(cert, PATH_LIMIT, "%s/ca.pem", dir);
    snprintf(key, PATH_LIMIT, "%s/ca.key", dir);
    return TN_OK;
}

tn_code tn_cert_init(const char *dir, const char *name, int days, tn_err *err) {
    char cert_path[PATH_LIMIT], key_path[PATH_LIMIT], subject[80];
    int64_t now = (int64_t)time(NULL);
    writer w;
    tn_code code;
    int rc;

    writer_init(&w);
    code = check_request(name, days, err);
    if (code == TN_OK)
        code = ca_paths(dir, cert_path, key_path, err);
    if (code == TN_OK)
        code = tn_mkdirs(dir, err);
    if (code == TN_OK)
        code = check_absent(cert_path, err);
    if (code == TN_OK)
        code = check_absent(key_path, err);
    if (code == TN_OK)
        code = writer_begin(&w, name, now - EARLY, now + (int64_t)days * DAY, err);
    if (code != TN_OK)
        goto out;
    snprintf(subject, sizeof(subject), "CN=%s", name);
    mbedtls_x509write_crt_set_issuer_key(&w.crt, &w.key);
    rc = mbedtls_x509write_crt_set_issuer_name(&w.crt, subject);
    if (rc == 0)
        rc = mbedtls_x509write_crt_set_basic_constraints(&w.crt, 1, 0);
    if (rc == 0)
        rc = mbedtls_x509write_crt_set_key_usage(&w.crt, MBEDTLS_X509_KU_KEY_CERT_SIGN | MBEDTLS_X509_KU_CRL_SIGN);
    code = rc == 0 ? writer_finish(&w, cert_path, key_path, NULL, err) : mbed_fail(err, rc, "certificate of the CA");
out:
    writer_release(&w);
    return code;
}

static tn_code parse_cert(mbedtls_x509_crt *crt, const char *path, tn_err *err) {
    uint8_t *data = NULL;
    size_t size = 0;
    tn_code code = tn_file_read(path, FILE_LIMIT, &data, &size, err);
    int rc;

    if (code != TN_OK)
        return code;
    rc = mbedtls_x509_crt_parse(crt, data, size + 1);
    free(data);
    return rc == 0 ? TN_OK : tn_fail(err, TN_EAUTH, "%s: no certificate in PEM form can be read from it", path);
}

static tn_code parse_key(mbedtls_pk_context *key, const char *path, tn_err *err) {
    uint8_t *data = NULL;
    size_t size = 0;
    tn_code code = tn_file_read(path, FILE_LIMIT, &data, &size, err);
    int rc;

    if (code != TN_OK)
        return code;
    rc = mbedtls_pk_parse_key(key, data, size + 1, NULL, 0);
    explicit_bzero(data, size);
    free(data);
    return rc == 0 ? TN_OK : tn_fail(err, TN_EAUTH, "%s: no private key in PEM form can be read from it", path);
}

static tn_code load_ca(const char *dir, mbedtls_x509_crt *crt, mbedtls_pk_context *key, tn_err *err) {
    char cert_path[PATH_LIMIT], key_path[PATH_LIMIT];
    tn_code code = ca_paths(dir, cert_path, key_path, err);

    if (code == TN_OK)
        code = parse_cert(crt, cert_path, err);
    if (code == TN_OK)
        code = parse_key(key, key_path, err);
    if (code != TN_OK)
        return code;
    if (!crt->ca_istrue)
        return tn_fail(err, TN_EAUTH, "%s: not the certificate of a CA", cert_path);
    if (mbedtls_pk_check_pair(&crt->pk, key) != 0)
        return tn_fail(err, TN_EAUTH, "%s: the key does not belong to the certificate %s", key_path, cert_path);
    if (mbedtls_x509_time_is_past(&crt->valid_to))
        return tn_fail(err, TN_EAUTH, "%s: the CA's certificate has expired: make a new CA", cert_path);
    return TN_OK;
}

/* ---- issuing ------------------------------------------------------------------------------------------------------- */

/* The writer fills buffers from their end: *p moves down to `start`. */
static int put_name(uint8_t **p, uint8_t *start, int tag, const void *bytes, size_t n) {
    int len = mbedtls_asn1_write_raw_buffer(p, start, bytes, n), rc;

    if (len < 0 || (rc = mbedtls_asn1_write_len(p, start, n)) < 0)
        return len < 0 ? len : rc;
    len += rc;
    rc = mbedtls_asn1_write_tag(p, start, (unsigned char)(MBEDTLS_ASN1_CONTEXT_SPECIFIC | tag));
    return rc < 0 ? rc : len + rc;
}

static int close_sequence(uint8_t **p, uint8_t *start, size_t len) {
    int a = mbedtls_asn1_write_len(p, start, len), b = mbedtls_asn1_write_tag(p, start, MBEDTLS_ASN1_CONSTRUCTED |
                                                                                              MBEDTLS_ASN1_SEQUENCE);

    if (a < 0 || b < 0)
        return a < 0 ? a : b;
    return (int)len + a + b;
}

/* GeneralNames (RFC 5280, 4.2.1.6): dNSName [2], iPAddress [7]. */
static int set_alternative_names(mbedtls_x509write_cert *crt, const tn_cert_request *req) {
    uint8_t der[MAX_HOSTS * (MAX_HOST + 32)], address[16];
    uint8_t *p = der + sizeof(der);
    size_t len = 0;
    int rc;

    for (size_t i = req->nhosts; i-- > 0;) {
        size_t n = address_bytes(req->hosts[i], address);

        rc = n > 0 ? put_name(&p, der, 7, address, n) : 0;
        if (rc < 0)
            return rc;
        len += (size_t)rc;
        rc = put_name(&p, der, 2, req->hosts[i], strlen(req->hosts[i]));
        if (rc < 0)
            return rc;
        len += (size_t)rc;
    }
    if (len == 0)
        return 0;
    rc = close_sequence(&p, der, len);
    return rc < 0 ? rc : mbedtls_x509write_crt_set_extension(crt, MBEDTLS_OID_SUBJECT_ALT_NAME,
                                                             MBEDTLS_OID_SIZE(MBEDTLS_OID_SUBJECT_ALT_NAME), 0, p,
                                                             (size_t)rc);
}

static int set_extended_key_usage(mbedtls_x509write_cert *crt, bool server) {
    uint8_t der[64];
    uint8_t *p = der + sizeof(der);
    int len = mbedtls_asn1_write_oid(&p, der, MBEDTLS_OID_CLIENT_AUTH, MBEDTLS_OID_SIZE(MBEDTLS_OID_CLIENT_AUTH));
    int rc = server ? mbedtls_asn1_write_oid(&p, der, MBEDTLS_OID_SERVER_AUTH, MBEDTLS_OID_SIZE(MBEDTLS_OID_SERVER_AUTH)) : 0;

    if (len < 0 || rc < 0)
        return len < 0 ? len : rc;
    rc = close_sequence(&p, der, (size_t)(len + rc));
    return rc < 0 ? rc : mbedtls_x509write_crt_set_extension(crt, MBEDTLS_OID_EXTENDED_KEY_USAGE,
                                                             MBEDTLS_OID_SIZE(MBEDTLS_OID_EXTENDED_KEY_USAGE), 0, p,
                                                             (size_t)rc);
}

static int64_t epoch_of(const mbedtls_x509_time *t) {
    struct tm tm = {.tm_year = t->year - 1900, .tm_mon = t->mon - 1, .tm_mday = t->day, .tm_hour = t->hour,
                    .tm_min = t->min, .tm_sec = t->sec};

    return (int64_t)timegm(&tm);
}

static tn_code fill_leaf(writer *w, const tn_cert_request *req, const mbedtls_x509_crt *ca, mbedtls_pk_context *ca_key,
                         tn_err *err) {
    char issuer[512];
    int rc = mbedtls_x509_dn_gets(issuer, sizeof(issuer), &ca->subject);

    mbedtls_x509write_crt_set_issuer_key(&w->crt, ca_key);
    if (rc >= 0)
        rc = mbedtls_x509write_crt_set_issuer_name(&w->crt, issuer);
    if (rc == 0)
        rc = mbedtls_x509write_crt_set_basic_constraints(&w->crt, 0, -1);
    if (rc == 0)
        rc = mbedtls_x509write_crt_set_key_usage(&w->crt, MBEDTLS_X509_KU_DIGITAL_SIGNATURE);
    if (rc == 0)
        rc = set_extended_key_usage(&w->crt, req->server);
    if (rc == 0)
        rc = set_alternative_names(&w->crt, req);
    return rc == 0 ? TN_OK : mbed_fail(err, rc, "certificate: its fields cannot be set");
}

tn_code tni_cert_issue(const char *dir, const tn_cert_request *req, int64_t not_before, int64_t not_after,
                       const char *cert_path, const char *key_path, uint8_t *sha256, tn_err *err) {
    mbedtls_x509_crt ca;
    mbedtls_pk_context ca_key;
    writer w;
    tn_code code;

    mbedtls_x509_crt_init(&ca);
    mbedtls_pk_init(&ca_key);
    writer_init(&w);
    code = check_hosts(req, err);
    if (code == TN_OK)
        code = check_absent(cert_path, err);
    if (code == TN_OK)
        code = check_absent(key_path, err);
    if (code == TN_OK)
        code = load_ca(dir, &ca, &ca_key, err);
    if (code != TN_OK)
        goto out;
    if (not_after > epoch_of(&ca.valid_to)) /* Nobody accepts it for longer than its CA. */
        not_after = epoch_of(&ca.valid_to);
    code = writer_begin(&w, req->name, not_before, not_after, err);
    if (code == TN_OK)
        code = fill_leaf(&w, req, &ca, &ca_key, err);
    if (code == TN_OK)
        code = writer_finish(&w, cert_path, key_path, sha256, err);
out:
    writer_release(&w);
    mbedtls_pk_free(&ca_key);
    mbedtls_x509_crt_free(&ca);
    return code;
}

tn_code tn_cert_issue(const char *dir, const tn_cert_request *req, const char *cert_path, const char *key_path,
                      uint8_t *sha256, tn_err *err) {
    int64_t now = (int64_t)time(NULL);
    tn_code code = check_request(req->name, req->days, err);

    if (code != TN_OK)
        return code;
    return tni_cert_issue(dir, req, now - EARLY, now + (int64_t)req->days * DAY, cert_path, key_path, sha256, err);
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

static tn_code common_name(const mbedtls_x509_crt *crt, char *out, size_t cap, const char *path, tn_err *err) {
    for (const mbedtls_x509_name *n = &crt->subject; n != NULL; n = n->next) {
        if (n->oid.p == NULL || MBEDTLS_OID_CMP(MBEDTLS_OID_AT_CN, &n->oid) != 0)
            continue;
        if (n->val.len >= cap || n->val.len > 64 || memchr(n->val.p, '\0', n->val.len) != NULL)
            break;
        memcpy(out, n->val.p, n->val.len);
        out[n->val.len] = '\0';
        return TN_OK;
    }
    return tn_fail(err, TN_EAUTH, "%s: the certificate has no common name of 1 to 64 bytes", path);
}

tn_code tn_cert_inspect(const char *cert_path, uint8_t *sha256, char *name, size_t cap, int64_t *not_after, tn_err *err) {
    mbedtls_x509_crt crt;
    tn_code code;
    int rc;

    mbedtls_x509_crt_init(&crt);
    code = parse_cert(&crt, cert_path, err);
    if (code == TN_OK && name != NULL)
        code = common_name(&crt, name, cap, cert_path, err);
    if (code == TN_OK && sha256 != NULL && (rc = mbedtls_sha256_ret(crt.raw.p, crt.raw.len, sha256, 0)) != 0)
        code = mbed_fail(err, rc, cert_path);
    if (code == TN_OK && not_after != NULL)
        *not_after = epoch_of(&crt.valid_to);
    mbedtls_x509_crt_free(&crt);
    return code;
}
