// Which rows a shard has, and records of many shards in the order of the input.
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "base/whole_file.h"
#include "io/result_writer.h"
#include "job/record_runs.h"
#include "job/shard.h"
#include "planner/prefix_index.h"
#include "planner/row_shards.h"
#include "tests/support/faulty_file_ops.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace llmb {

using test::TempDir;

TEST_CASE("a shard is I/N with I below N, in plain decimals") {
  const auto shard = parse_shard("3/7");
  REQUIRE(shard.ok());
  CHECK(*shard == Shard{3, 7});
  CHECK(shard_text(*shard) == "3/7");
  for (const char* text : {"", "/", "1", "1/", "/2", "2/2", "-1/2", "0/0", "0/-1", "+0/2", "00/2", "0/02", "0/2/3", " 0/2",
                           "0/1048577", "0/99999999999999999999"})
    CHECK_MESSAGE(!parse_shard(text).ok(), text);
  CHECK(parse_shard("1048575/1048576").ok());
}

TEST_CASE("every row belongs to one shard, and of each N rows that follow each other every shard has one") {
  for (const int64_t count : {1, 2, 3, 7, 64, 1000}) {
    for (const int64_t block : {int64_t{0}, int64_t{1}, int64_t{12345}, int64_t{1} << 40}) {
      std::vector<int> found(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        const int64_t shard = shard_of_row(block * count + i, count);
        REQUIRE(shard >= 0);
        REQUIRE(shard < count);
        ++found[static_cast<size_t>(shard)];
      }
      CHECK(std::all_of(found.begin(), found.end(), [](int n) { return n == 1; }));
    }
  }
  // Part of what outputs of earlier builds were made by: these values stay.
  const int64_t expected[] = {5, 6, 0, 1, 2, 3, 4, 4, 5, 6, 0, 1, 2, 3};
  for (int64_t i = 0; i < 14; ++i) CHECK_MESSAGE(shard_of_row(i, 7) == expected[i], i);
}

TEST_CASE("a pattern in the file, or the rows that one shard left, are spread over all shards") {
  for (const auto& [period, count] : {std::pair<int64_t, int64_t>{2, 8}, {8, 2}, {64, 64}, {3, 6}}) {
    std::vector<int> found(static_cast<size_t>(count));
    for (int64_t i = 0; i < 20000; ++i) ++found[static_cast<size_t>(shard_of_row(i * period, count))];
    for (const int n : found) CHECK(std::abs(n - 20000 / count) < 5 * std::sqrt(20000.0 / static_cast<double>(count)));
  }
  for (const int64_t other : {2, 6, 8, 12}) {
    std::vector<int> found(static_cast<size_t>(other));
    int total = 0;
    for (int64_t i = 0; i < 60000; ++i)
      if (shard_of_row(i, 6) == 3) ++found[static_cast<size_t>(shard_of_row(i, other))], ++total;
    if (other == 6) continue;  // the same shard
    for (const int n : found)
      CHECK(std::abs(n - total / other) < 5 * std::sqrt(static_cast<double>(total) / static_cast<double>(other)));
  }
}

namespace {

// Prompts of tokens, in the order of the file.
struct Rows {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<PlannedRow> rows;
  std::vector<int64_t> costs;

  void add(std::vector<TokenId> prompt, int64_t num_output_tokens) {
    prompts.push_back(std::move(prompt));
    rows.push_back({index.num_prompts(), index.add(prompts.back()), num_output_tokens});
    costs.push_back(tokens_to_compute(rows.back(), static_cast<int64_t>(prompts.back().size())));
  }
  PrefixIndex index{64 << 20};
};

// Prompt tokens that a machine computes whose cache forgets nothing, by brute force over all prefixes.
int64_t computed_tokens(const std::vector<std::vector<TokenId>>& prompts) {
  std::set<std::vector<TokenId>> seen;
  int64_t count = 0;
  for (const auto& prompt : prompts)
    for (size_t n = 1; n <= prompt.size(); ++n) count += seen.emplace(prompt.begin(), prompt.begin() + n).second;
  return count;
}

}  // namespace

TEST_CASE("shards by prefix have as much work each, and lose few of the savings at their seams") {
  for (const int kind : {0, 1, 2}) {
    std::mt19937 random(kind);
    const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    const auto text = [&](int seed, int length) {
      std::vector<TokenId> tokens;
      for (int i = 0; i < length; ++i) tokens.push_back((seed * 7919 + i * 31) % 30011);
      return tokens;
    };
    std::vector<std::pair<int, int>> groups;  // document, question
    for (int i = 0; i < 4000; ++i) groups.emplace_back(draw(0, kind == 0 ? 400 : 40), i);
    Rows rows;
    for (const auto& [document, question] : groups) {
      std::vector<TokenId> prompt = kind == 2 ? std::vector<TokenId>() : text(-1, 20);  // a system prompt
      const auto middle = text(document, 40 + document % 17), end = text(100000 + question, draw(3, 20));
      prompt.insert(prompt.end(), middle.begin(), middle.end());
      prompt.insert(prompt.end(), end.begin(), end.end());
      rows.add(std::move(prompt), draw(1, 30));
    }
    const int64_t num_asked = [&] {
      int64_t sum = 0;
      for (const auto& prompt : rows.prompts) sum += static_cast<int64_t>(prompt.size());
      return sum;
    }();
    const int64_t num_saved = num_asked - computed_tokens(rows.prompts);
    for (const int32_t count : {1, 2, 7, 16}) {
      const auto shards = divide_rows(rows.rows, rows.costs, count);
      double most = 0, sum = 0;
      int64_t num_computed = 0;
      for (int32_t shard = 0; shard < count; ++shard) {
        std::vector<std::vector<TokenId>> own;
        int64_t output = 0;
        for (size_t i = 0; i < shards.size(); ++i) {
          if (shards[i] != shard) continue;
          own.push_back(rows.prompts[i]);
          output += rows.rows[i].num_output_tokens;
        }
        const int64_t computed = computed_tokens(own);
        num_computed += computed;
        most = std::max(most, static_cast<double>(computed + output));
        sum += static_cast<double>(computed + output);
      }
      CAPTURE(kind);
      CAPTURE(count);
      CHECK(most / (sum / count) <= 1.05);
      CHECK(static_cast<double>(num_asked - num_computed) >= 0.98 * static_cast<double>(num_saved));
    }
  }
}

TEST_CASE("rows by prefix: none, fewer than shards, one that holds nearly all the work, and rows without a prompt") {
  CHECK(divide_rows({}, {}, 3).empty());
  Rows rows;
  rows.add({1, 2, 3}, 1);
  rows.add({1, 2, 4}, 1000000);
  const auto few = divide_rows(rows.rows, rows.costs, 64);
  for (const int32_t shard : few) CHECK((shard >= 0 && shard < 64));
  std::vector<PlannedRow> errors(10, PlannedRow{-1, {}, 1});
  const std::vector<int64_t> costs(10, 1);
  const auto even = divide_rows(errors, costs, 5);
  for (int32_t shard = 0; shard < 5; ++shard) CHECK(std::count(even.begin(), even.end(), shard) == 2);
}

namespace {

constexpr int kNumFiles = 5;
const std::string kChanged = "{\"changed\":true,";

// Files of records in a random order; the first num_in_order of them in the order of the input.
struct RecordFiles {
  TempDir dir;
  std::map<int64_t, std::string> expected;
  std::vector<std::vector<std::pair<int64_t, size_t>>> sizes = {};  // by file: index, bytes of a record

  explicit RecordFiles(int num_in_order, int num_records = 500) {
    std::mt19937 random(7);
    std::vector<int64_t> indices(static_cast<size_t>(num_records));
    for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int64_t>(3 * i);
    std::shuffle(indices.begin(), indices.end(), random);
    for (int f = 0; f < kNumFiles; ++f) {
      std::vector<int64_t> own(indices.begin() + num_records / kNumFiles * f,
                               indices.begin() + num_records / kNumFiles * (f + 1));
      if (f < num_in_order) std::sort(own.begin(), own.end());
      std::string text;
      sizes.emplace_back();
      for (const int64_t index : own) {
        Completion completion;
        completion.line = {index, "in", index + 1, 0, 9};
        if (index % 2 == 0) completion.form = ApiForm::kOpenAiCompletion;
        completion.choices.emplace_back();
        completion.choices[0].text = std::string(static_cast<size_t>(index * 7919 % 600), 'x') + "\"index\":5,";
        const std::string record = ResultFormatter().format(completion);
        text += record;
        sizes.back().emplace_back(index, record.size());
        expected[index] = is_changed(f) ? kChanged + record.substr(1) : record;
      }
      test::write_file(path(f), text);
    }
  }
  std::string path(int f) const { return dir / ("f" + std::to_string(f)); }
  static bool is_changed(int f) { return f == kNumFiles - 1; }

  // All records in the order in which they come.
  Result<std::string> merge(
      size_t max_in_memory, FileOps& ops, const std::function<void()>& between = [] {}) const {
    RecordRuns runs(dir / "runs", kNumFiles, ops, max_in_memory);
    const auto change = [](std::string_view record, std::string* out) { (*out += kChanged) += record.substr(1); };
    for (int f = 0; f < kNumFiles; ++f) {
      LLMB_RETURN_IF_ERROR(runs.begin_file(path(f), is_changed(f) ? change : RecordRuns::Change()));
      for (const auto& [index, size] : sizes[static_cast<size_t>(f)]) runs.add(index, size);
    }
    between();
    std::string found;
    LLMB_RETURN_IF_ERROR(runs.for_each([&](std::string_view records) {
      found += records;
      return Status();
    }));
    return found;
  }
  std::string all() const {
    std::string text;
    for (const auto& [index, record] : expected) text += record;
    return text;
  }
};

}  // namespace

TEST_CASE("records of any files come in the order of the input, in memory that is bounded") {
  for (const size_t max_in_memory : {size_t{1}, size_t{100000}, size_t{1} << 22})
    for (const int num_in_order : {0, 1, 3, 5}) {
      const RecordFiles files(num_in_order);
      test::FaultyFileOps ops;
      ops.max_io_bytes = 5000;
      ops.num_interrupts = 1;
      const auto found = files.merge(max_in_memory, ops);
      REQUIRE_MESSAGE(found.ok(), found.status().message());
      CHECK(*found == files.all());
      CHECK(!file_exists(files.dir / "runs"));
      // Only what overlaps in more than this memory goes through the disk.
      const bool is_spilled = ops.count(test::FileCall::kWrite) > 0;
      if (max_in_memory == 1 && num_in_order == 0) CHECK(is_spilled);
      if (max_in_memory == 1 << 22) CHECK_FALSE(is_spilled);
    }
  RecordRuns none("none", 0, real_file_ops());
  CHECK(none.for_each([](std::string_view) { return internal_error("no record"); }).ok());
}

TEST_CASE("records of files that change before they are read again are refused, as is every failing call") {
  const RecordFiles files(1);
  const std::string text = test::read_file(files.path(2));
  const std::vector<std::function<void()>> changes = {
      [&] { test::write_file(files.path(2), text.substr(0, text.size() / 2)); },
      [&] { test::write_file(files.path(2), text + text); },
      [&] { std::filesystem::remove(files.path(2)); },
      [&] {
        test::write_file(files.path(2) + ".new", text);
        std::filesystem::rename(files.path(2) + ".new", files.path(2));
      }};
  for (const auto& change : changes) {
    const auto found = files.merge(1, real_file_ops(), change);
    CHECK(found.status().code() == StatusCode::kIoError);
    CHECK_MESSAGE(found.status().message().find("f2") != std::string::npos, found.status().message());
    test::write_file(files.path(2), text);
  }
  test::FaultyFileOps counting;
  REQUIRE(files.merge(1, counting).ok());
  for (int64_t at = 1; at <= counting.num_calls(); ++at) {
    test::FaultyFileOps ops;
    ops.any_fault = {.at = at, .error = EIO};
    const auto found = files.merge(1, ops);
    if (found.ok()) CHECK(*found == files.all());
    else CHECK(found.status().code() == StatusCode::kIoError);
    const auto failed = ops.failed_call();
    if (failed != test::FileCall::kClose && failed != test::FileCall::kUnlink) CHECK_FALSE(found.ok());
  }
}

}  // namespace llmb
