#include "files.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "io/gzip.h"

static struct m3_error error;

static void setup(void)
{
    make_folder();
    error = (struct m3_error){ 0 };
}

static void teardown(void)
{
    m3_error_free(&error);
    remove_folder();
}

TIMEOUT(60);
FIXTURE(setup, teardown);

TEST(names)
{
    ck_assert(m3_is_gzip_name("a.safetensors.gz") && m3_is_gzip_name(".gz"));
    ck_assert(!m3_is_gzip_name("a.safetensors") && !m3_is_gzip_name("gz") && !m3_is_gzip_name("a.gz.x"));
    ck_assert(!m3_is_gzip_name("") && !m3_is_gzip_name("a.GZ"));
}

/* Goal: packed and unpacked again, the bytes are the same, at sizes around the pieces that are worked in, for bytes
 * that compress well and for bytes that do not. */
TEST(round_trips)
{
    static const size_t sizes[] = { 0, 1, 65535, 65536, 65537, 3000001 };
    static unsigned char bytes[3000001];
    for (int noise = 0; noise < 2; noise++) {
        uint32_t seed = 1;
        for (size_t i = 0; i < sizeof bytes; i++) {
            seed = seed * 1664525u + 1013904223u;
            bytes[i] = (unsigned char)(noise ? seed >> 24 : i / 1000);
        }
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            write_bytes(in_folder("plain"), bytes, sizes[i]);
            int plain = open(in_folder("plain"), O_RDONLY), unpacked;
            int packed = open(in_folder("packed"), O_RDWR | O_CREAT | O_TRUNC, 0600);
            ck_assert_int_eq(m3_gzip(packed, plain, "packed", &error), M3_OK);
            ck_assert_int_eq(lseek(packed, 0, SEEK_SET), 0);
            ck_assert_msg(m3_gunzip(&unpacked, packed, "packed", &error) == M3_OK, "%s", error.text);

            struct stat info;
            fstat(unpacked, &info);
            ck_assert_uint_eq((size_t)info.st_size, sizes[i]);
            unsigned char *back = malloc(sizes[i] + 1);
            ck_assert_int_eq(pread(unpacked, back, sizes[i], 0), (ssize_t)sizes[i]);
            ck_assert_int_eq(memcmp(back, bytes, sizes[i]), 0);
            free(back);
            close(plain);
            close(packed);
            close(unpacked);
        }
    }
}

static void on_alarm(int signal) { (void)signal; }

/* Goal:  a write that a signal cuts short, or stops before its first byte, is gone on with where it stopped.
 * Given: a pipe whose reader is slow, and an alarm each millisecond, so that both happen.
 * Seen to fail with each piece written from the beginning, and without the second try after EINTR. */
TEST(interrupted_writes)
{
    enum { COUNT = 1 << 20 };
    static unsigned char bytes[COUNT];
    for (int i = 0; i < COUNT; i++) bytes[i] = (unsigned char)(i * 31 + i / 256);
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t reader = fork();
    if (reader == 0) {
        close(ends[1]);
        unsigned char piece[10000];
        ssize_t got;
        size_t at = 0;
        int same = 1;
        while ((got = read(ends[0], piece, sizeof piece)) > 0) {
            same &= at + (size_t)got <= COUNT && memcmp(piece, bytes + at, (size_t)got) == 0;
            at += (size_t)got;
            usleep(3000);
        }
        _exit(same && at == COUNT ? 0 : 1);
    }
    close(ends[0]);
    struct sigaction action = { .sa_handler = on_alarm };
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 1000 }, { 0, 1000 } }, NULL);
    ck_assert_int_eq(m3_write_all(ends[1], bytes, COUNT, "pipe", &error), M3_OK);
    setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 0 }, { 0, 0 } }, NULL);
    close(ends[1]);
    int result;
    ck_assert_int_eq(waitpid(reader, &result, 0), reader);
    ck_assert(WIFEXITED(result) && WEXITSTATUS(result) == 0);
}

TEST(full_device)
{
    int fd = open("/dev/full", O_WRONLY);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(m3_write_all(fd, "x", 1, "/dev/full", &error), M3_IO);
    ck_assert_str_eq(error.text, "/dev/full: cannot write: No space left on device\n");
    write_text(in_folder("plain"), "some text");
    int plain = open(in_folder("plain"), O_RDONLY);
    ck_assert_int_eq(m3_gzip(fd, plain, "/dev/full", &error), M3_IO);
    close(plain);
    close(fd);
}
