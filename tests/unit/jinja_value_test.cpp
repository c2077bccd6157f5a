// The heap's accounting and the dict, below the level of templates.
#include "jinja/value.h"

#include <doctest/doctest.h>

#include "jinja/json.h"
#include "jinja/ops.h"

namespace llmb::jinja {

TEST_CASE("a heap counts what lives on it, down to nothing") {
  Heap heap{Limits{}};
  {
    const Value a = make_string(heap, std::string(1000, 'x'));
    CHECK(heap.live_bytes() >= 1000);
    auto* list = heap.make<List>();
    const Value holder = make_list(list);
    for (int i = 0; i < 10; ++i) list->push(a);
    auto* dict = heap.make<Dict>();
    const Value d(Type::kDict, dict);
    for (int i = 0; i < 100; ++i) dict->set(Value::integer(i), holder);
  }
  CHECK(heap.live_bytes() == 0);
}

TEST_CASE("an allocation past the limit fails and leaves the count as it was") {
  Limits limits;
  limits.max_memory_bytes = 10'000;
  Heap heap{limits};
  const Value small = make_string(heap, std::string(100, 'x'));
  const int64_t before = heap.live_bytes();
  CHECK_THROWS_AS(make_string(heap, std::string(20'000, 'x')), Error);
  CHECK(heap.live_bytes() == before);
  {
    TextBuilder text(heap);
    CHECK_THROWS_AS(while (true) text.append("0123456789"), Error);
  }
  CHECK(heap.live_bytes() == before);
}

TEST_CASE("steps end exactly at the limit") {
  Limits limits;
  limits.max_steps = 10;
  Heap heap{limits};
  CHECK_NOTHROW(heap.spend(10));
  CHECK_THROWS_AS(heap.spend(1), Error);
}

TEST_CASE("a dict keeps insertion order and finds every key, below and above the size of its index") {
  Heap heap{Limits{}};
  for (const int size : {0, 1, 7, 8, 9, 16, 17, 1000}) {
    auto* dict = heap.make<Dict>();
    const Value holder(Type::kDict, dict);
    for (int i = 0; i < size; ++i) dict->set(make_string(heap, "key" + std::to_string(i)), Value::integer(i));
    for (int i = 0; i < size; ++i) dict->set(make_string(heap, "key" + std::to_string(i)), Value::integer(2 * i));
    CHECK(dict->entries.size() == static_cast<size_t>(size));
    for (int i = 0; i < size; ++i) {
      const Value* found = dict->find("key" + std::to_string(i));
      REQUIRE(found != nullptr);
      CHECK(found->as_int() == 2 * i);
      CHECK(dict->entries[static_cast<size_t>(i)].second.as_int() == 2 * i);
      CHECK(dict->find(make_string(heap, "key" + std::to_string(i))) == found);
    }
    CHECK(dict->find("other") == nullptr);
    CHECK(dict->find(Value::integer(3)) == nullptr);
  }
}

TEST_CASE("numbers that are equal are one key") {
  Heap heap{Limits{}};
  auto* dict = heap.make<Dict>();
  const Value holder(Type::kDict, dict);
  dict->set(Value::integer(1), Value::integer(10));
  dict->set(Value::boolean(true), Value::integer(20));
  dict->set(Value::real(1.0), Value::integer(30));
  for (int i = 2; i < 50; ++i) dict->set(Value::real(i), Value::integer(i));
  CHECK(dict->entries.size() == 49);
  CHECK(dict->find(Value::real(1.0))->as_int() == 30);
  CHECK(dict->find(Value::integer(49))->as_int() == 49);
  CHECK_THROWS_AS(dict->find(holder), Error);
}

TEST_CASE("JSON comes back as it was, keys in order, the last of doubled ones") {
  Heap heap{Limits{}};
  const std::string text = R"({"b": [1, -2.5, true, null, "é\n"], "a": {}, "c": []})";
  CHECK(text_of(write_json(heap, parse_json(heap, text, "x"), {})) == text);
  CHECK(text_of(write_json(heap, parse_json(heap, R"({"a": 1, "b": 2, "a": 3})", "x"), {})) == R"({"a": 3, "b": 2})");
  for (const char* bad : {"", "{", "[1,]", "nul", "\"\\ud800\"", "\"\xff\"", "1 2", "[1e999]"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_json(heap, bad, "x"), Error);
  }
}

}  // namespace llmb::jinja
