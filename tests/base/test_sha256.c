#include "base/sha256.h"

#include <check.h>
#include <string.h>

#include "base/status.h"

static const char a_million_a[] = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

/* The examples that NIST publishes with FIPS 180. */
TEST(published_examples)
{
    static const struct {
        const char *text, *hex;
    } cases[] = {
        { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char hex[65];
        struct m3_sha256 *hash = m3_sha256_new();
        m3_sha256_add(hash, cases[i].text, strlen(cases[i].text));
        ck_assert_int_eq(m3_sha256_end(hash, hex), M3_OK);
        ck_assert_str_eq(hex, cases[i].hex);
    }
}

/* Goal: pieces of any size, empty ones too, give the hash of the whole. */
TEST(in_pieces)
{
    char piece[997], hex[65];
    memset(piece, 'a', sizeof piece);
    struct m3_sha256 *hash = m3_sha256_new();
    for (size_t left = 1000000, size = 1; left > 0; left -= size) {
        size = (size * 7 + 3) % sizeof piece;
        if (size > left) size = left;
        m3_sha256_add(hash, piece, size);
        m3_sha256_add(hash, NULL, 0);
    }
    ck_assert_int_eq(m3_sha256_end(hash, hex), M3_OK);
    ck_assert_str_eq(hex, a_million_a);
}
