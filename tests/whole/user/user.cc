// A user of the installed library, in C++: runs a model on a case and judges the dump against a golden.
#include <m3ref.h>

#include <iostream>

static int end(int status, m3_error &error)
{
    m3_error_print(&error, stderr);
    m3_error_free(&error);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 5) return M3_USAGE;
    m3_error notes = {}, error = {};
    struct m3_library_model run = {};
    run.model = argv[1];
    run.the_case = argv[2];
    run.dump = argv[4];
    run.precision = "f32";
    run.linear = "blas";
    run.threads = 2;
    run.command = "user";
    const int status = m3_library_model(&run, &notes, &error);
    m3_error_free(&notes);
    if (status) return end(status, error);

    struct m3_library_compare compare = {};
    compare.reference = argv[3];
    compare.candidate = argv[4];
    compare.profile = "fp32";
    struct m3_library_report report = {};
    if (int failed = m3_library_compare(&report, &compare, &error)) return end(failed, error);
    std::cout << report.text;
    const int verdict = report.status;
    m3_library_report_free(&report);
    return verdict;
}
