// The scanner behind the layout test: it must neither miss nor invent.
#include "tests/support/source_scan.h"

#include <doctest/doctest.h>

namespace llmb::test {

using Names = std::set<std::string>;

TEST_CASE("comments and literals are no code, whatever stands in them") {
  CHECK(without_comments("a // b\nc") == "a \nc");
  CHECK(without_comments("a /* b\n */ c") == "a \n  c");
  CHECK(without_comments(R"(f("// no \" comment", 'x', '\'', '"');)") == R"(f("", '', '', '');)");
  CHECK(without_comments("x = 1'000'000; y") == "x = 1'000'000; y");
  CHECK(without_comments("#error don't\nint a;") == "#error don't\nint a;");
  CHECK(without_comments("s = R\"-(\" ) )\" {\n)-\"; b") == "s = \"\"\n; b");
  CHECK(identifiers("#include \"a/b.h\"\nint f(\"no\", kYes); // no\n") == Names{"include", "int", "f", "kYes"});
}

TEST_CASE("includes are those by quotes") {
  CHECK(quoted_includes("#include <a>\n #  include \"b/c.h\"\n// #include \"d.h\"\n") ==
        std::vector<std::string>{"b/c.h"});
}

TEST_CASE("a header declares its macros, types, members, functions and constants, and nothing of their insides") {
  const Names names = declared_names(R"(
      #define LLMB_X(a) \
        inside_macro(a)
      namespace n::inner {
      struct Forward;
      enum class Color : int { kRed = 1, kBlue };
      template <typename T, int kWidth = 4> class Box : public Base {
       public:
        explicit Box(int parameter) : member_(parameter), other_{parameter} { inside_body(parameter); }
        Other get(Parameter p = default_value) const { return inside_body(p); }
        std::vector<Argument> items;
       private:
        int member_ = inside_value(3), other_;
      };
      inline constexpr int kLimit = 5, kTable[2] = {inside_table, 7};
      using Alias = std::map<Key, Mapped>;
      using other::name;
      bool operator==(const Box& a, const Box& b);
      Result make(int parameter);
      })");
  for (const char* name : {"LLMB_X", "Forward", "Color", "kRed", "kBlue", "Box", "get", "items", "member_", "other_",
                           "kLimit", "kTable", "Alias", "make", "name"})
    CHECK_MESSAGE(names.contains(name), name);
  for (const char* name : {"inside_macro", "parameter", "inside_body", "p", "default_value", "inside_table", "Argument",
                           "Key", "Mapped", "Result", "Parameter", "n", "inner"})
    CHECK_MESSAGE(!names.contains(name), name);
}

TEST_CASE("functions are measured from their first line to their closing brace") {
  const auto extents = function_extents(
      "namespace n {\n"
      "struct alignas(64) S {\n"
      "  S() : a_{1}, b_(2) {\n"
      "    if (a_) { b_ = 3; }\n"
      "  }\n"
      "  int a_ = f({1}), b_;\n"
      "};\n"
      "constexpr int kTable[] = {\n"
      "  f(1),\n"
      "};\n"
      "template <typename T>\n"
      "bool operator==(const T& a,\n"
      "                const T& b) {\n"
      "  return [&] { return true; }();\n"
      "}\n"
      "void declared();\n"
      "}\n");
  REQUIRE(extents.size() == 2);
  CHECK(extents[0].line == 3);
  CHECK(extents[0].num_lines == 3);
  CHECK(extents[1].line == 11);
  CHECK(extents[1].num_lines == 5);
}

}  // namespace llmb::test
