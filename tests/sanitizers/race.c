/* Two ways to add up in parallel, one of them wrong: what `make tsan` must report, and what it must not.
 *
 *     race racy      threads add to one variable without order
 *     race ordered   OpenMP's reduction: right */
#include <stdio.h>
#include <string.h>

enum { COUNT = 100000 };

static long racy(void)
{
    long sum = 0;
#pragma omp parallel for num_threads(2)
    for (long i = 0; i < COUNT; i++) sum += i;
    return sum;
}

static long ordered(void)
{
    long sum = 0;
#pragma omp parallel for num_threads(2) reduction(+ : sum)
    for (long i = 0; i < COUNT; i++) sum += i;
    return sum;
}

int main(int argc, char **argv)
{
    const int is_racy = argc == 2 && strcmp(argv[1], "racy") == 0;
    printf("%ld\n", is_racy ? racy() : ordered());
    return 0;
}
