// Tokenizers and chat templates of GGUF files: the same ids and texts as the files they were made from.

#include <doctest/doctest.h>

#include "chat/chat_template.h"
#include "tests/support/gguf_from_hf.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tokenizer_fixtures.h"
#include "tests/unit/load_gguf_tokenizer.h"

namespace llmb::test {

namespace {

const std::string kFixtures = source_dir() + "/data/fixtures/tokenizers/";

Status status_of(const GgufWriter& writer) {
  const TempDir dir;
  write_file(dir / "m.gguf", writer.bytes());
  return Tokenizer::load(dir / "m.gguf").status();
}

void check_golden(const Tokenizer& tokenizer, const std::string& dir) {
  for (const auto& row : read_jsonl(dir + "/golden.jsonl")) {
    // GGUF has no place for the flags of added tokens that take white space with them.
    const bool has_flags =
        row.contains("text") && (row["text"].get<std::string>().find("<mask>") != std::string::npos ||
                                 row["text"].get<std::string>().find("</s> ") != std::string::npos);
    if (row.contains("text") && !has_flags) {
      const auto text = row["text"].get<std::string>();
      CAPTURE(text);
      CHECK(tokenizer.encode(text, true) == row["ids"].get<std::vector<TokenId>>());
      CHECK(tokenizer.encode(text, false) == row["ids_no_special"].get<std::vector<TokenId>>());
    }
    const auto ids = row["ids"].get<std::vector<TokenId>>();
    CHECK(tokenizer.decode(ids, true) == row["decoded_skip"].get<std::string>());
    CHECK(tokenizer.decode(ids, false) == row["decoded"].get<std::string>());
  }
}

GgufWriter byte_level(const std::string& fixture, const std::string& pre) {
  GgufWriter w;
  w.text("general.architecture", "llama");
  add_byte_level_tokenizer(&w, read_hf_tokenizer(kFixtures + fixture), pre);
  return w;
}

}  // namespace

TEST_CASE("byte-level BPE: the ids and texts of the golden files, by the name of the splitting") {
  for (const auto& c : {std::pair("llama3", "llama-bpe"), {"o200k", "gpt-4o"}, {"qwen2_files", "qwen2"}}) {
    const std::string fixture = c.first, pre = c.second;
    CAPTURE(fixture);
    GgufWriter w = byte_level(fixture, pre);
    if (fixture == "llama3") {
      w.u32("tokenizer.ggml.bos_token_id", 420);
      w.u32("tokenizer.ggml.eos_token_id", 421);
    }
    check_golden(*load(w), kFixtures + fixture);
  }
  GgufWriter w;
  add_byte_level_tokenizer(&w, read_hf_tokenizer(source_dir() + "/data/model"), "smollm");
  const auto tokenizer = load(w);
  for (const auto& row : read_jsonl(source_dir() + "/data/fixtures/tokenizer-bundled.jsonl"))
    if (row.contains("text"))
      CHECK(tokenizer->encode(row["text"].get<std::string>(), false) == row["ids"].get<std::vector<TokenId>>());
}

TEST_CASE("sentencepiece BPE with byte fallback: the ids and texts of the golden file") {
  GgufWriter w;
  add_spm_tokenizer(&w, read_hf_tokenizer(kFixtures + "llama2"));
  check_golden(*load(w), kFixtures + "llama2");
}

TEST_CASE("every name of a splitting loads, others are refused by theirs") {
  const HfTokenizer files = read_hf_tokenizer(kFixtures + "o200k");
  for (const char* pre : {"llama3",
                          "llama-v3",
                          "llama-bpe",
                          "dbrx",
                          "smaug-bpe",
                          "glm4",
                          "chatglm-bpe",
                          "qwen2",
                          "deepseek-r1-qwen",
                          "megrez",
                          "stablelm2",
                          "gpt-2",
                          "phi-2",
                          "mpt",
                          "olmo",
                          "smollm",
                          "starcoder",
                          "refact",
                          "codeshell",
                          "exaone",
                          "minerva-7b",
                          "command-r",
                          "falcon",
                          "default",
                          "gpt-4o",
                          "llama4",
                          "tekken",
                          "deepseek-v3",
                          "deepseek-coder",
                          "deepseek-llm",
                          "kimi-k2",
                          "falcon3",
                          "bloom",
                          "glm5",
                          "hunyuan",
                          "hunyuan-dense",
                          "exaone4",
                          "qwen35",
                          "bailingmoe",
                          "seed-coder",
                          "ufakzeka",
                          "jais-2",
                          "tiny_aya",
                          "superbpe",
                          "afmoe",
                          "laguna",
                          "spark2_5",
                          "youtu",
                          "minicpm5",
                          "viking",
                          "granite-docling",
                          "modern-bert",
                          "mellum2",
                          "minimax-m2"}) {
    CAPTURE(pre);
    GgufWriter w;
    add_byte_level_tokenizer(&w, files, pre);
    const auto tokenizer = load(w);
    const std::string text = "It's 12345 naïve cafés,\n\n 日本語 über-GROSS  x";
    CHECK(tokenizer->decode(tokenizer->encode(text, false), true) == text);
  }
  GgufWriter w;
  add_byte_level_tokenizer(&w, files, "unheard-of");
  const Status status = status_of(w);
  CHECK(status.code() == StatusCode::kUnsupported);
  CHECK(status.message().find("\"unheard-of\" is not supported; --tokenizer") != std::string::npos);
  for (const char* model : {"rwkv", "plamo2"}) {
    GgufWriter other;
    other.text("tokenizer.ggml.model", model);
    other.texts("tokenizer.ggml.tokens", {"a"});
    CHECK(status_of(other).message().find(std::string("\"") + model + "\" is not supported") != std::string::npos);
  }
}

TEST_CASE("flags and special tokens") {
  GgufWriter w = byte_level("llama3", "gpt-2");  // which adds no token before the text by itself
  w.u32("tokenizer.ggml.bos_token_id", 420);
  w.u32("tokenizer.ggml.eos_token_id", 421);
  const auto plain = load(w);
  CHECK(plain->bos_token_id() == 420);
  CHECK(plain->eos_token() == "</s>");
  CHECK(plain->encode("a", true) == plain->encode("a", false));
  CHECK(plain->encode("</s>", false) == std::vector<TokenId>{421});
  w.boolean("tokenizer.ggml.add_bos_token", true);
  w.boolean("tokenizer.ggml.add_eos_token", true);
  const auto ids = load(w)->encode("", true);
  CHECK(ids == std::vector<TokenId>{420, 421});

  GgufWriter spm;
  add_spm_tokenizer(&spm, read_hf_tokenizer(kFixtures + "llama2"));
  const auto with_space = load(spm);
  spm.boolean("tokenizer.ggml.add_space_prefix", false);
  const auto without = load(spm);
  CHECK(with_space->encode("a", false) != without->encode("a", false));
  CHECK(with_space->encode("a", false) == without->encode(" a", false));
  CHECK(without->decode(without->encode("a", false), true) == "a");
}

TEST_CASE("damaged tokenizers are refused") {
  const auto refused = [](const GgufWriter& w, const char* part) {
    const Status status = status_of(w);
    REQUIRE(!status.ok());
    CHECK_MESSAGE(status.message().find(part) != std::string::npos, status.message());
  };
  GgufWriter none;
  none.u32("a", 1);
  CHECK(status_of(none).code() == StatusCode::kNotFound);
  const auto start = [](const char* model = "gpt2") {
    GgufWriter w;
    w.text("tokenizer.ggml.model", model);
    return w;
  };
  GgufWriter w = start();
  refused(w, "tokenizer.ggml.tokens");
  w.ints("tokenizer.ggml.tokens", {1});
  refused(w, "tokenizer.ggml.tokens");
  w = start();
  w.texts("tokenizer.ggml.tokens", {"a", "b"});
  refused(w, "tokenizer.ggml.merges");
  w.texts("tokenizer.ggml.merges", {"a"});
  refused(w, "a");
  w = start();
  w.texts("tokenizer.ggml.tokens", {"a", "a"});
  w.texts("tokenizer.ggml.merges", {});
  refused(w, "a");
  w = start();
  w.texts("tokenizer.ggml.tokens", {"a", "\xff"});
  refused(w, "token 1 is not UTF-8");
  w = start();
  w.texts("tokenizer.ggml.tokens", {"a", "b"});
  w.ints("tokenizer.ggml.token_type", {1});
  refused(w, "token_type");
  w = start();
  w.texts("tokenizer.ggml.tokens", {"a", "b", "ab"});
  w.texts("tokenizer.ggml.merges", {"a x"});
  refused(w, "x");
  w = start();
  w.texts("tokenizer.ggml.tokens", {std::string(20000, 'a')});
  w.texts("tokenizer.ggml.merges", {});
  refused(w, "");
  w = start("llama");
  w.texts("tokenizer.ggml.tokens", {"a"});
  w.floats("tokenizer.ggml.scores", {NAN});
  refused(w, "not finite");
  w = start("llama");
  w.texts("tokenizer.ggml.tokens", {"a"});
  w.u32("tokenizer.ggml.unknown_token_id", 5);
  refused(w, "unk_id");
  w = start();
  w.texts("tokenizer.ggml.tokens", std::vector<std::string>((1 << 20) + 1, ""));
  refused(w, "too many");
  // Special tokens that are no tokens are none; an empty token has a name.
  w = start();
  w.texts("tokenizer.ggml.tokens", {"a", ""});
  w.texts("tokenizer.ggml.merges", {});
  w.u32("tokenizer.ggml.bos_token_id", 77);
  const auto tokenizer = load(w);
  CHECK_FALSE(tokenizer->bos_token_id().has_value());
  CHECK(tokenizer->token_piece(1) == "[EMPTY_1]");
}

TEST_CASE("chat templates") {
  GgufWriter w = byte_level("llama3", "llama-bpe");
  w.u32("tokenizer.ggml.bos_token_id", 420);
  w.u32("tokenizer.ggml.eos_token_id", 9999);
  const TempDir dir;
  write_file(dir / "none.gguf", w.bytes());
  const auto none = ChatTemplate::load(dir / "none.gguf");
  CHECK(none.status().code() == StatusCode::kNotFound);
  CHECK(none.status().message().find("tokenizer.chat_template") != std::string::npos);
  w.text("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}");
  w.text("tokenizer.chat_template.tool_use", "tools: {{ tools | length }}");
  write_file(dir / "m.gguf", w.bytes());
  const auto loaded = ChatTemplate::load(dir / "m.gguf");
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
  ChatMessages input;
  input.messages_json = R"([{"role":"user","content":"hi"}])";
  CHECK(*(*loaded)->render(input) == "<s>hi");
  input.tools_json = "[{}]";
  CHECK(*(*loaded)->render(input) == "tools: 1");
  write_file(dir / "own.jinja", "mine {{ bos_token }}");
  CHECK(*(*ChatTemplate::load(dir / "none.gguf", dir / "own.jinja"))->render(input) == "mine <s>");
  GgufWriter bad;
  bad.text("tokenizer.chat_template", "{% if %}");
  write_file(dir / "bad.gguf", bad.bytes());
  CHECK_FALSE(ChatTemplate::load(dir / "bad.gguf").ok());
}

}  // namespace llmb::test
