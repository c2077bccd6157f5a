#include "text/letter_case.h"

#include <doctest/doctest.h>

namespace llmb {

TEST_CASE("case follows Unicode's special casing") {
  CHECK(to_upper("straße ŉ ﬃ \u0390") == "STRASSE ʼN FFI \u0399\u0308\u0301");
  CHECK(to_lower("ΌΔΥΣΣΕΥΣ ΑΣ. Σ") == "όδυσσευς ας. σ");
  CHECK(to_title("ǆ ß it's x1y") == "ǅ Ss It'S X1Y");
  CHECK(capitalize("éA") == "Éa");
}

TEST_CASE("classes of letters include those that Unicode adds to the general categories") {
  for (const char32_t c : {U'A', U'\u00C9', U'\u2160', U'\u24B6', U'\U0001F130'}) CHECK(is_upper(c));
  for (const char32_t c : {U'a', U'\u00E9', U'\u00AA', U'\u2170', U'\u24D0'}) CHECK(is_lower(c));
  CHECK(is_title(U'\u01C5'));
  for (const char32_t c : {U'1', U' ', U'\u4F60'}) CHECK(!(is_upper(c) || is_lower(c) || is_title(c)));
}

TEST_CASE("a sigma is final behind a letter and before none, whatever marks stand between") {
  CHECK(to_lower("Σ") == "σ");
  CHECK(to_lower("ΑΣ") == "ας");
  CHECK(to_lower("ΑΣΑ") == "ασα");
  CHECK(to_lower("Α\u0301Σ\u0301.") == "α\u0301ς\u0301.");
  CHECK(to_lower(" Σ") == " σ");
}

}  // namespace llmb
