// SHA-256 of published examples, and the same by both ways to compute it.
#include "base/sha256.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/support/skip.h"

namespace llmb::test {

TEST_CASE("SHA-256 of the examples of FIPS 180 and NIST's byte vectors") {
  struct Example {
    std::string bytes;
    Sha256Digest digest;
  };
  const Example examples[] = {
      {"", {0xe3b0c44298fc1c14, 0x9afbf4c8996fb924, 0x27ae41e4649b934c, 0xa495991b7852b855}},
      {"\xd3", {0x28969cdfa74a12c8, 0x2f3bad960b0b000a, 0xca2ac329deea5c23, 0x28ebc6f2ba9802c1}},
      {"abc", {0xba7816bf8f01cfea, 0x414140de5dae2223, 0xb00361a396177a9c, 0xb410ff61f20015ad}},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       {0x248d6a61d20638b8, 0xe5c026930c3e6039, 0xa33ce45964ff2167, 0xf6ecedd419db06c1}},
      {std::string(1000000, 'a'), {0xcdc76e5c9914fb92, 0x81a1c7e284d73e67, 0xf1809a48a497200e, 0x046d39ccc7112cd0}},
  };
  for (const Example& example : examples) {
    CAPTURE(example.bytes.size());
    CHECK(sha256(example.bytes) == example.digest);
    CHECK(sha256(example.bytes, /*uses_instructions=*/false) == example.digest);
  }
}

TEST_CASE("SHA-256 is the same with and without the processor's instructions, at every length around a block") {
  if (!has_sha_instructions()) {
    skip("this processor has no instructions for it");
    return;
  }
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    CAPTURE(i);
    CHECK(sha256(bytes, true) == sha256(bytes, false));
    bytes.push_back(static_cast<char>(i * 37 + i / 5));
  }
}

}  // namespace llmb::test
