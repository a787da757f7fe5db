/* Hashes, hex and identities. The expected bytes come from Python's hashlib and from a plain transcription
 * of RFC 8032, section 6, never from the code under test. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "privacy/privacy.h"

static char dir[] = "/tmp/tn-privacy-XXXXXX";
static char path[128];

static void set_up(void) {
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/identity", dir);
}

static void tear_down(void) {
    unlink(path);
    ck_assert_int_eq(rmdir(dir), 0); /* fails when a temporary file was left behind */
}

static void put_file(const char *text, size_t n, mode_t mode) {
    FILE *f = fopen(path, "w");

    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(text, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_int_eq(chmod(path, mode), 0);
}

#define SEED2 "0202020202020202020202020202020202020202020202020202020202020202"
#define PK2 "8139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394"
#define IDENTITY2 "torchnative-identity 1\n" PK2 "\n" SEED2 "\n"

START_TEST(hash_vectors) {
    static const struct {
        const char *in, *out;
    } v[] = {
        {"", "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"},
        {"abc", "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"},
    };
    uint8_t out[TN_HASH_BYTES];
    char hex[2 * TN_HASH_BYTES + 1];

    for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++) {
        tn_hash_once(v[i].in, strlen(v[i].in), out);
        tn_hex(out, sizeof(out), hex);
        ck_assert_str_eq(hex, v[i].out);
    }
}
END_TEST

START_TEST(hash_in_pieces) {
    uint8_t data[1000], whole[TN_HASH_BYTES], pieces[TN_HASH_BYTES];
    tn_hash h, copy;

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 7);
    tn_hash_once(data, sizeof(data), whole);
    for (size_t step = 1; step < 300; step += 13) {
        tn_hash_init(&h);
        for (size_t at = 0; at < sizeof(data); at += step)
            tn_hash_update(&h, data + at, sizeof(data) - at < step ? sizeof(data) - at : step);
        tn_hash_update(&h, NULL, 0);
        copy = h; /* a plain value */
        tn_hash_final(&h, pieces);
        ck_assert_mem_eq(pieces, whole, sizeof(whole));
        tn_hash_final(&copy, pieces);
        ck_assert_mem_eq(pieces, whole, sizeof(whole));
    }
}
END_TEST

START_TEST(hex_both_ways) {
    uint8_t in[3] = {0x00, 0xaf, 0x10}, out[3];
    char hex[7];
    tn_err err = TN_ERR_INIT;

    tn_hex(in, 3, hex);
    ck_assert_str_eq(hex, "00af10");
    ck_assert_int_eq(tn_unhex("00AF10", out, 3, &err), TN_OK);
    ck_assert_mem_eq(out, in, 3);
    ck_assert_int_eq(tn_unhex("00af1", out, 3, &err), TN_EINVAL);
    ck_assert_int_eq(tn_unhex("00af100", out, 3, &err), TN_EINVAL);
    ck_assert_int_eq(tn_unhex("00af1g", out, 3, &err), TN_EINVAL);
    ck_assert_int_eq(tn_unhex("00 f10", out, 3, &err), TN_EINVAL);
    ck_assert_int_eq(tn_unhex("", out, 0, &err), TN_OK);
}
END_TEST

START_TEST(key_round_trip) {
    tn_key a, b;
    tn_err err = TN_ERR_INIT;
    struct stat st;
    uint8_t sig[TN_SIG_BYTES];

    ck_assert_int_eq(tn_key_new(&a, &err), TN_OK);
    ck_assert_int_eq(tn_key_save(&a, path, &err), TN_OK);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0600);
    ck_assert_int_eq(tn_key_save(&a, path, &err), TN_EBUSY);
    ck_assert_ptr_nonnull(strstr(err.msg, path));
    ck_assert_int_eq(tn_key_load(&b, path, &err), TN_OK);
    ck_assert_mem_eq(a.pk, b.pk, TN_KEY_BYTES);
    ck_assert_int_eq(tn_key_sign(&b, "test", "hello", 5, sig, &err), TN_OK);
    ck_assert_int_eq(tn_key_verify(a.pk, "test", "hello", 5, sig, &err), TN_OK);
    tn_key_release(&a);
    tn_key_release(&b);
    ck_assert_ptr_null(a.sk);
    tn_key_release(&a); /* again: harmless */
}
END_TEST

START_TEST(two_keys_differ) {
    tn_key a, b;
    tn_err err = TN_ERR_INIT;

    ck_assert_int_eq(tn_key_new(&a, &err), TN_OK);
    ck_assert_int_eq(tn_key_new(&b, &err), TN_OK);
    ck_assert_mem_ne(a.pk, b.pk, TN_KEY_BYTES);
    tn_key_release(&a);
    tn_key_release(&b);
}
END_TEST

START_TEST(signature_vector) {
    static const char want[] = "d594fea61afeb7ea511827450b03e5a063ec9270dc2d9cb0e279b7865d968314"
                               "46926e0acaabf7516714d482810cfaccdafeecf82080d48a89a2b885a9c0aa03";
    uint8_t sig[TN_SIG_BYTES];
    char hex[2 * TN_SIG_BYTES + 1];
    tn_key k;
    tn_err err = TN_ERR_INIT;

    put_file(IDENTITY2, strlen(IDENTITY2), 0600);
    ck_assert_int_eq(tn_key_load(&k, path, &err), TN_OK);
    ck_assert_int_eq(tn_key_sign(&k, "x", NULL, 0, sig, &err), TN_OK);
    tn_hex(sig, sizeof(sig), hex);
    ck_assert_str_eq(hex, want);
    tn_key_release(&k);
}
END_TEST

START_TEST(signatures_refused) {
    uint8_t sig[TN_SIG_BYTES], other[TN_SIG_BYTES], zero[TN_KEY_BYTES] = {0};
    char label[66];
    tn_key a, b;
    tn_err err = TN_ERR_INIT;

    ck_assert_int_eq(tn_key_new(&a, &err), TN_OK);
    ck_assert_int_eq(tn_key_new(&b, &err), TN_OK);
    ck_assert_int_eq(tn_key_sign(&a, "one", "text", 4, sig, &err), TN_OK);
    ck_assert_int_eq(tn_key_verify(a.pk, "two", "text", 4, sig, &err), TN_EAUTH);
    ck_assert_int_eq(tn_key_verify(a.pk, "one", "tex", 3, sig, &err), TN_EAUTH);
    ck_assert_int_eq(tn_key_verify(b.pk, "one", "text", 4, sig, &err), TN_EAUTH);
    ck_assert_int_eq(tn_key_verify(zero, "one", "text", 4, sig, &err), TN_EAUTH);
    /* The label's end is part of what is signed: "on" || "etext" is another message. */
    ck_assert_int_eq(tn_key_verify(a.pk, "on", "etext", 5, sig, &err), TN_EAUTH);
    for (size_t bit = 0; bit < 8 * TN_SIG_BYTES; bit++) {
        memcpy(other, sig, sizeof(sig));
        other[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_eq(tn_key_verify(a.pk, "one", "text", 4, other, &err), TN_EAUTH);
    }
    memset(label, 'l', sizeof(label));
    label[65] = '\0';
    ck_assert_int_eq(tn_key_sign(&a, label, "", 0, sig, &err), TN_EINVAL);
    ck_assert_int_eq(tn_key_sign(&a, "", "", 0, sig, &err), TN_EINVAL);
    label[64] = '\0';
    ck_assert_int_eq(tn_key_sign(&a, label, "", 0, sig, &err), TN_OK);
    tn_key_release(&a);
    tn_key_release(&b);
}
END_TEST

START_TEST(identity_files_refused) {
    static const char *const bad[] = {
        "",
        "torchnative-identity 1\n",
        "torchnative-identity 2\n" PK2 "\n" SEED2 "\n",
        IDENTITY2 "more",
        "torchnative-identity 1\n" PK2 " " SEED2 "\n",
        "torchnative-identity 1\n" PK2 "\n" SEED2 " ",
        "torchnative-identity 1\ng139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394\n" SEED2 "\n",
        /* The public key of another seed. */
        "torchnative-identity 1\n8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c\n" SEED2 "\n",
    };
    tn_key k;
    tn_err err = TN_ERR_INIT;

    ck_assert_int_eq(tn_key_load(&k, path, &err), TN_ENOTFOUND);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        put_file(bad[i], strlen(bad[i]), 0600);
        ck_assert_int_eq(tn_key_load(&k, path, &err), TN_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.msg, path));
        ck_assert_ptr_null(k.sk);
        tn_key_release(&k);
    }
    for (size_t n = 0; n < strlen(IDENTITY2); n++) {
        put_file(IDENTITY2, n, 0600);
        ck_assert_int_eq(tn_key_load(&k, path, &err), TN_EINVAL);
    }
    put_file(IDENTITY2, strlen(IDENTITY2), 0640);
    ck_assert_int_eq(tn_key_load(&k, path, &err), TN_EAUTH);
    ck_assert_ptr_nonnull(strstr(err.msg, "chmod 600"));
    ck_assert_int_eq(tn_key_load(&k, dir, &err), TN_EINVAL);
}
END_TEST

START_TEST(save_where_there_is_no_folder) {
    tn_key k;
    tn_err err = TN_ERR_INIT;

    ck_assert_int_eq(tn_key_new(&k, &err), TN_OK);
    ck_assert_int_eq(tn_key_save(&k, "/nonexistent-folder/identity", &err), TN_EIO);
    tn_key_release(&k);
}
END_TEST

int main(void) {
    Suite *s = suite_create("privacy");
    TCase *hashes = tcase_create("hashes"), *keys = tcase_create("keys");
    SRunner *r = srunner_create(s);
    int failed;

    suite_add_tcase(s, hashes);
    tcase_add_test(hashes, hash_vectors);
    tcase_add_test(hashes, hash_in_pieces);
    tcase_add_test(hashes, hex_both_ways);
    suite_add_tcase(s, keys);
    tcase_add_checked_fixture(keys, set_up, tear_down);
    tcase_add_test(keys, key_round_trip);
    tcase_add_test(keys, two_keys_differ);
    tcase_add_test(keys, signature_vector);
    tcase_add_test(keys, signatures_refused);
    tcase_add_test(keys, identity_files_refused);
    tcase_add_test(keys, save_where_there_is_no_folder);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
