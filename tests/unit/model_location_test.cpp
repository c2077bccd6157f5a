// Names of models in a Hugging Face cache, built by hand as huggingface_hub lays it out.
#include "model/model_location.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>

#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";
const std::string kOther = "89abcdef0123456789abcdef0123456789abcdef";

Environment variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found != values.end() ? std::optional(found->second) : std::nullopt;
  };
}

// A cache with files that are links into blobs, as the hub's client makes them.
class Cache {
 public:
  void add_file(const std::string& model, const std::string& commit, const std::string& name,
                const std::string& content) {
    const fs::path repo = fs::path(dir_.path()) / ("models--" + model);
    const std::string blob = std::to_string(num_blobs_++);
    fs::create_directories(repo / "blobs");
    write_file((repo / "blobs" / blob).string(), content);
    const fs::path link = repo / "snapshots" / commit / name;
    fs::create_directories(link.parent_path());
    fs::create_symlink(repo / "blobs" / blob, link);
  }
  void add_ref(const std::string& model, const std::string& revision, const std::string& commit) {
    const fs::path ref = fs::path(dir_.path()) / ("models--" + model) / "refs" / revision;
    fs::create_directories(ref.parent_path());
    write_file(ref.string(), commit);
  }
  void add_model(const std::string& model, const std::string& commit) {
    for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) add_file(model, commit, name, "{}");
  }
  const std::string& path() const { return dir_.path(); }

  std::string found(const std::string& name, const std::string& revision = "", ModelParts parts = {}) const {
    const auto location = locate_model(name, revision, parts, path());
    REQUIRE_MESSAGE(location.ok(), location.status().message());
    return fs::path(location->path).lexically_relative(path()).string();
  }
  std::string refused(const std::string& name, const std::string& revision = "", ModelParts parts = {}) const {
    const auto location = locate_model(name, revision, parts, path());
    REQUIRE_MESSAGE(!location.ok(), location->path);
    CHECK(location.status().code() == StatusCode::kNotFound);
    CHECK(location.status().message().find('\n') == std::string::npos);
    return location.status().message();
  }

 private:
  TempDir dir_;
  int num_blobs_ = 0;
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the cache is where huggingface_hub looks for it") {
  CHECK(hub_cache_dir(variables({{"HOME", "/h"}})) == "/h/.cache/huggingface/hub");
  CHECK(hub_cache_dir(variables({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}})) == "/x/huggingface/hub");
  CHECK(hub_cache_dir(variables({{"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "/f/"}})) == "/f/hub");
  CHECK(hub_cache_dir(variables({{"HF_HOME", "/f"}, {"HUGGINGFACE_HUB_CACHE", "/old"}})) == "/old");
  CHECK(hub_cache_dir(variables({{"HF_HOME", "/f"}, {"HUGGINGFACE_HUB_CACHE", "/old"}, {"HF_HUB_CACHE", "/c"}})) ==
        "/c");
  CHECK(hub_cache_dir(variables({{"HF_HUB_CACHE", ""}, {"HF_HOME", "/f"}})) == "/f/hub");
}

TEST_CASE("a home and variables inside the cache's path are replaced, others stay") {
  const auto cache = [](const std::string& path) {
    return hub_cache_dir(variables({{"HOME", "/h"}, {"A_1", "one"}, {"HF_HUB_CACHE", path}}));
  };
  CHECK(cache("~/c") == "/h/c");
  CHECK(cache("~") == "/h");
  CHECK(cache("/~/c") == "/~/c");
  CHECK(cache("$HOME/$A_1") == "/h/one");
  CHECK(cache("/x${A_1}y") == "/xoney");
  for (const char* path : {"/$NONE/c", "/${A_1", "/$", "/${}", "/a$/b"}) CHECK(cache(path) == path);
}

TEST_CASE("a name means the snapshot of its revision") {
  Cache cache;
  cache.add_model("Org--Model-1.5", kCommit);
  cache.add_model("Org--Model-1.5", kOther);
  cache.add_model("gpt2", kCommit);
  cache.add_ref("Org--Model-1.5", "main", kCommit);
  cache.add_ref("Org--Model-1.5", "refs/pr/1", kOther + "\n");
  cache.add_ref("gpt2", "main", kCommit);
  const std::string snapshots = "models--Org--Model-1.5/snapshots/";
  CHECK(cache.found("Org/Model-1.5") == snapshots + kCommit);
  CHECK(cache.found("Org/Model-1.5", "main") == snapshots + kCommit);
  CHECK(cache.found("Org/Model-1.5", "refs/pr/1") == snapshots + kOther);
  CHECK(cache.found("Org/Model-1.5", kOther) == snapshots + kOther);
  CHECK(cache.found("gpt2") == "models--gpt2/snapshots/" + kCommit);
  CHECK(locate_model("gpt2", "", {}, cache.path())->commit == kCommit);
}

TEST_CASE("what is not there is refused with the command that downloads it") {
  Cache cache;
  cache.add_model("Org--Model", kCommit);
  CHECK(contains(cache.refused("Org/Other"), "download it with: hf download Org/Other"));
  CHECK(contains(cache.refused("Org/Other", "v2"), "hf download Org/Other --revision v2"));
  // Without refs/main there is no main, whatever snapshots there are.
  CHECK(contains(cache.refused("Org/Model"), kCommit));
  CHECK(contains(cache.refused("Org/Model", "v2"), "hf download Org/Model --revision v2"));
  cache.add_ref("Org--Model", "main", kOther);  // its snapshot is gone
  CHECK(contains(cache.refused("Org/Model"), "revision main"));
}

TEST_CASE("a name that is no model's name is a path, and nothing outside the cache is reached") {
  Cache cache;
  cache.add_model("m", kCommit);
  for (const char* name : {"", "/x/y", "./m", "../m", "a/b/c", "a/", "/a", "a/..", "-m/a", "a b", "a--b"})
    CHECK(contains(cache.refused(name), "no such directory or file"));
  cache.add_ref("m", "main", "../snapshots/" + kCommit);
  CHECK(contains(cache.refused("m"), "revision main"));
  for (const char* revision : {"../x", "/etc", "a b", "a\nb"})
    CHECK(locate_model("m", revision, {}, cache.path()).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("a directory wins, and has no revisions") {
  Cache cache;
  cache.add_model("docs", kCommit);
  cache.add_ref("docs", "main", kCommit);
  const TempDir dir;
  const fs::path before = fs::current_path();
  fs::current_path(dir.path());
  CHECK(cache.found("docs") == "models--docs/snapshots/" + kCommit);
  fs::create_directory("docs");
  CHECK(locate_model("docs", "", {}, cache.path())->path == "docs");
  CHECK(locate_model("docs", "main", {}, cache.path()).status().code() == StatusCode::kInvalidArgument);
  fs::current_path(before);
}

TEST_CASE("an incomplete snapshot is refused, naming what is missing and what is not needed is not asked for") {
  Cache cache;
  cache.add_ref("m", "main", kCommit);
  cache.add_file("m", kCommit, "README.md", "");
  CHECK(contains(cache.refused("m"), "config.json is missing"));
  cache.add_file("m", kCommit, "config.json", "{}");
  CHECK(contains(cache.refused("m"), "model.safetensors is missing"));
  CHECK(contains(cache.refused("m", "", {.weights = false}), "tokenizer.json is missing"));
  cache.found("m", "", {.weights = false, .tokenizer = false});
  cache.add_file("m", kCommit, "model.safetensors.index.json",
                 R"({"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})");
  cache.add_file("m", kCommit, "model-00001-of-00002.safetensors", "");
  const std::string message = cache.refused("m");
  CHECK(contains(message, "model-00002-of-00002.safetensors is missing"));
  CHECK(contains(message, "complete it with: hf download m"));
  cache.add_file("m", kCommit, "model-00002-of-00002.safetensors", "");
  CHECK(contains(cache.refused("m"), "tokenizer.json is missing"));
  cache.add_file("m", kCommit, "tokenizer.model", "");
  cache.found("m");
  // A link whose blob is gone is a file that is not there.
  fs::remove(fs::path(cache.path()) / "models--m/blobs/1");
  CHECK(contains(cache.refused("m"), "config.json is missing"));
}

TEST_CASE("GGUF models in several files, in folders, and beside what sees") {
  Cache cache;
  cache.add_ref("Org--M-GGUF", "main", kCommit);
  cache.add_file("Org--M-GGUF", kCommit, "BF16/m-BF16-00002-of-00002.gguf", "");
  CHECK(contains(cache.refused("Org/M-GGUF"),
                 "BF16/m-BF16-00001-of-00002.gguf is missing in the Hugging Face cache, the download is not complete"));
  cache.add_file("Org--M-GGUF", kCommit, "BF16/m-BF16-00001-of-00002.gguf", "");
  cache.add_file("Org--M-GGUF", kCommit, "mmproj-BF16.gguf", "");
  const std::string file = "models--Org--M-GGUF/snapshots/" + kCommit + "/BF16/m-BF16-00001-of-00002.gguf";
  CHECK(cache.found("Org/M-GGUF") == file);
  CHECK(cache.found("Org/M-GGUF:bf16/m") == file);
  const TempDir dir;
  write_file(dir / "a-00002-of-00002.gguf", "");
  CHECK(contains(cache.refused(dir.path()), "a-00001-of-00002.gguf is missing"));
  write_file(dir / "a-00001-of-00002.gguf", "");
  CHECK(locate_model(dir.path(), "", {}, cache.path())->path == dir / "a-00001-of-00002.gguf");
  write_file(dir / "b.gguf", "");
  CHECK(contains(cache.refused(dir.path()), "say which one: -m " + dir.path() + "/FILE.gguf"));
}

TEST_CASE("names as they are pasted, and almost right") {
  Cache cache;
  cache.add_ref("Org--Model", "main", kCommit);
  cache.add_model("Org--Model", kCommit);
  const std::string snapshot = "models--Org--Model/snapshots/" + kCommit;
  for (const char* name : {"https://huggingface.co/Org/Model", "https://huggingface.co/Org/Model/",
                           "https://huggingface.co/Org/Model/tree/main", "https://hf.co/Org/Model", "hf://Org/Model"})
    CHECK(cache.found(name) == snapshot);
  CHECK(contains(cache.refused("https://huggingface.co/Org/Model/blob/x"), "no such directory or file"));
  CHECK(contains(cache.refused("https://example.com/Org/Model"), "no such directory or file"));
  CHECK(contains(cache.refused("org/model"), "; it has Org/Model; download it with: hf download org/model"));
}

TEST_CASE("GGUF files: by path, the only one of a folder, or named by a part of theirs") {
  Cache cache;
  cache.add_ref("Org--M-GGUF", "main", kCommit);
  cache.add_file("Org--M-GGUF", kCommit, "README.md", "");
  CHECK(contains(cache.refused("Org/M-GGUF"), "config.json is missing"));
  CHECK(contains(cache.refused("Org/M-GGUF:Q4_K_M"), "hf download Org/M-GGUF --include '*Q4_K_M*'"));
  cache.add_file("Org--M-GGUF", kCommit, "m-Q4_K_M.gguf", "");
  const std::string file = "models--Org--M-GGUF/snapshots/" + kCommit + "/m-Q4_K_M.gguf";
  CHECK(cache.found("Org/M-GGUF") == file);
  CHECK(cache.found("Org/M-GGUF:q4_k") == file);
  cache.add_file("Org--M-GGUF", kCommit, "m-Q8_0.gguf", "");
  CHECK(
      contains(cache.refused("Org/M-GGUF"),
               "has 2 GGUF models, such as m-Q4_K_M.gguf and m-Q8_0.gguf; say which one: Org/M-GGUF:PART-OF-ITS-NAME"));
  CHECK(cache.found("Org/M-GGUF:Q4_K_M") == file);
  CHECK(contains(cache.refused("Org/M-GGUF:Q2"), "no GGUF file with \"Q2\""));
  cache.add_file("Org--M-GGUF", kCommit, "config.json", "{}");  // now it is a directory of the other kind
  CHECK(contains(cache.refused("Org/M-GGUF"), "model.safetensors is missing"));
  const std::string path = cache.path() + "/" + file;
  CHECK(locate_model(path, "", {}, cache.path())->path == path);
  CHECK(locate_model(path, "main", {}, cache.path()).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("a snapshot with pickles only is left to the checkpoint's own refusal, a hostile index is refused") {
  Cache cache;
  cache.add_ref("m", "main", kCommit);
  for (const char* name : {"config.json", "tokenizer.json"}) cache.add_file("m", kCommit, name, "{}");
  cache.add_file("m", kCommit, "pytorch_model.bin", "");
  cache.found("m");
  cache.add_file("m", kCommit, "model.safetensors.index.json", R"({"weight_map":{"a":"../../x"}})");
  CHECK_FALSE(locate_model("m", "", {}, cache.path()).ok());
}

}  // namespace llmb::test
