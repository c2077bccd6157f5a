#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/skip.h"

REGISTER_LISTENER("skips", 1, llmb::test::SkipListener);

int main(int argc, char** argv) { return llmb::test::run_tests(argc, argv); }
