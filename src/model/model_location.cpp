#include "model/model_location.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string_view>
#include <vector>

#include "base/directory.h"
#include "base/whole_file.h"
#include "formats/gguf_file.h"
#include "formats/safetensors.h"

namespace llmb {

namespace fs = std::filesystem;

namespace {

bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

std::string home_dir(const Environment& environment) {
  if (const auto home = environment("HOME"); home && !home->empty()) return *home;
  const passwd* entry = getpwuid(getuid());
  return entry != nullptr ? entry->pw_dir : "/";
}

// As Python's expanduser and expandvars, for this user's own home. Cron's variables need it: no
// shell has seen them.
std::string expand(std::string path, const Environment& environment) {
  if (path == "~" || path.starts_with("~/")) path = home_dir(environment) + path.substr(1);
  std::string out;
  for (size_t i = 0; i < path.size();) {
    const bool braces = path.compare(i, 2, "${") == 0;
    size_t begin = i + (braces ? 2 : 1), end = begin;
    while (end < path.size() && is_name_char(path[end])) ++end;
    const bool is_variable = path[i] == '$' && end > begin && (!braces || (end < path.size() && path[end] == '}'));
    const auto value = is_variable ? environment(path.substr(begin, end - begin).c_str()) : std::nullopt;
    if (!value) {
      out += path[i++];
      continue;
    }
    out += *value;
    i = end + (braces ? 1 : 0);
  }
  return out;
}

std::string joined(const std::string& dir, std::string_view rest) {
  return dir + (dir.ends_with('/') ? "" : "/") + std::string(rest);
}

// "name" or "organisation/name", as the hub allows them.
bool is_model_name(std::string_view name) {
  const size_t slash = name.find('/');
  const auto is_part = [](std::string_view part) {
    const bool good_chars =
        std::all_of(part.begin(), part.end(), [](char c) { return is_name_char(c) || c == '-' || c == '.'; });
    return !part.empty() && part.size() <= 96 && good_chars && part.find("--") == part.npos &&
           part.find("..") == part.npos && part.front() != '-' && part.front() != '.' && part.back() != '-' &&
           part.back() != '.';
  };
  if (slash == name.npos) return is_part(name);
  return is_part(name.substr(0, slash)) && is_part(name.substr(slash + 1));
}

bool is_revision(std::string_view revision) {
  return revision.size() <= 256 && revision.front() != '/' && revision.find("..") == revision.npos &&
         std::all_of(revision.begin(), revision.end(),
                     [](char c) { return is_name_char(c) || c == '-' || c == '.' || c == '/'; });
}

// A name pasted with the hub's address before it, and what a browser may have put after it.
std::string_view without_hub_address(std::string_view name) {
  for (const std::string_view address : {"https://huggingface.co/", "https://hf.co/", "hf://"})
    if (name.starts_with(address)) {
      name.remove_prefix(address.size());
      if (name.ends_with('/')) name.remove_suffix(1);
      if (name.ends_with("/tree/main")) name.remove_suffix(10);
      break;
    }
  return name;
}

// A cached model and what was asked of it.
struct CachedModel {
  std::string name, revision;  // "": main
  fs::path dir;

  std::string download_command() const {
    return "hf download " + name + (revision.empty() ? "" : " --revision " + revision);
  }
};

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);  // a link whose target is gone is none
}

bool is_dir(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// Names of files and directories in it, sorted.
std::vector<std::string> names_in(const fs::path& dir) {
  const Result<std::vector<std::string>> names = directory_names(dir.string());
  return names.ok() ? *names : std::vector<std::string>();
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

// The GGUF files in a folder and the folders in it, each model by its first file; "mmproj" files are of the part that
// sees.
std::vector<std::string> gguf_models_in(const fs::path& dir, const std::string& part) {
  std::set<std::string> found;
  const auto add = [&](const std::string& file) {
    if (!lower(file).ends_with(".gguf") || lower(file).find(lower(part)) == std::string::npos) return;
    if (is_file(dir / file) && (!part.empty() || lower(file).find("mmproj") == std::string::npos))
      found.insert(gguf_parts(file)[0]);
  };
  for (const std::string& name : names_in(dir)) {
    add(name);
    for (const std::string& inner : names_in(dir / name)) add(joined(name, inner));
  }
  return {found.begin(), found.end()};
}

// The GGUF file of a folder that is no model directory; "" where it has none.
Result<std::string> find_gguf(const fs::path& dir, const std::string& name, const std::string& part,
                              const std::string& which) {
  if (part.empty() && is_file(dir / "config.json")) return std::string();
  const std::vector<std::string> found = gguf_models_in(dir, part);
  if (found.empty()) return std::string();
  if (found.size() == 1) return (dir / found[0]).string();
  return not_found(name + ": has " + std::to_string(found.size()) + " GGUF models" +
                   (part.empty() ? "" : " with \"" + part + "\" in their names") + ", such as " + found[0] + " and " +
                   found[1] + "; say which one: " + which);
}

// The cached model whose folder differs from this one in large and small letters only; "" where there is none.
std::string name_but_for_case(const std::string& hub_cache, const std::string& folder) {
  constexpr std::string_view kPrefix = "models--";
  for (const std::string& name : names_in(hub_cache)) {
    if (lower(name) != lower(folder)) continue;
    std::string model = name.substr(kPrefix.size());
    if (const size_t at = model.find("--"); at != model.npos) model.replace(at, 2, "/");
    return model;
  }
  return "";
}

// The commit that refs/<revision> names, or the revision itself where it is a commit.
Result<std::string> commit_of(const CachedModel& model) {
  const std::string revision = model.revision.empty() ? "main" : model.revision;
  std::string commit;
  Result<std::string> ref = read_whole_file((model.dir / "refs" / revision).string(), 256);
  if (ref.status().code() == StatusCode::kResourceExhausted) return ref.status();
  if (ref.ok()) commit = std::move(*ref);
  commit.resize(std::min(commit.find_first_of(" \r\n"), commit.size()));
  if (commit.empty()) commit = revision;
  if (commit.find('/') == commit.npos && is_revision(commit) && is_dir(model.dir / "snapshots" / commit)) return commit;
  std::string message = model.name + ": revision " + revision + " is not in the Hugging Face cache";
  const std::vector<std::string> there = names_in(model.dir / "snapshots");
  if (!there.empty())
    message += " (which has " + there[0] + (there.size() > 1 ? " and others" : "") + "; see --revision)";
  return not_found(message + "; download it with: " + model.download_command());
}

// The first file of the weights that is missing; "" where all are there.
Result<std::string> missing_weights(const fs::path& snapshot) {
  if (is_file(snapshot / "model.safetensors")) return std::string();
  const fs::path index = snapshot / "model.safetensors.index.json";
  if (!is_file(index)) {
    // A model of pickles only is refused by its own words, where weights are opened.
    for (const std::string& name : names_in(snapshot))
      if (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth")) return std::string();
    return std::string("model.safetensors");
  }
  LLMB_ASSIGN_OR_RETURN(const auto text, read_whole_file(index.string(), kMaxTextFileBytes));
  const auto shards = parse_safetensors_index(text);
  if (!shards.ok()) return shards.status().with_context(index.string());
  std::set<std::string> names;
  for (const auto& [tensor, shard] : *shards) names.insert(shard);
  for (const std::string& name : names)
    if (!is_file(snapshot / name)) return name;
  return std::string();
}

std::string missing_tokenizer(const fs::path& snapshot) {
  for (const std::string& name : names_in(snapshot)) {
    const bool is_vocabulary = name == "tokenizer.json" || name == "vocab.json" || name == "encoder.json" ||
                               name == "vocab.txt" || name.ends_with(".model") || name.ends_with(".tiktoken");
    if (is_vocabulary && is_file(snapshot / name)) return "";
  }
  return "tokenizer.json";
}

Status incomplete(const CachedModel& model, const std::string& missing, const fs::path& snapshot) {
  return not_found(model.name + ": " + missing +
                   " is missing in the Hugging Face cache, the download is not complete (" + snapshot.string() +
                   "); complete it with: " + model.download_command());
}

// A snapshot holds only files that were downloaded to their end; what was interrupted is not in it.
Status check_complete(const CachedModel& model, const fs::path& snapshot, const ModelParts& parts) {
  std::string missing;
  if (parts.config && !is_file(snapshot / "config.json")) missing = "config.json";
  if (missing.empty() && parts.weights) {
    LLMB_ASSIGN_OR_RETURN(missing, missing_weights(snapshot));
  }
  if (missing.empty() && parts.tokenizer) missing = missing_tokenizer(snapshot);
  return missing.empty() ? Status() : incomplete(model, missing, snapshot);
}

Result<ModelLocation> locate_path(const std::string& path, const std::string& revision) {
  if (!revision.empty())
    return invalid_argument(path + " is a path: a revision is of a name in the Hugging Face cache");
  if (is_file(path)) return ModelLocation{path, ""};
  LLMB_ASSIGN_OR_RETURN(const std::string gguf, find_gguf(path, path, "", "-m " + joined(path, "FILE.gguf")));
  if (!gguf.empty() && !is_file(gguf)) return not_found(gguf + " is missing, the other files of the model are there");
  return ModelLocation{gguf.empty() ? path : gguf, ""};
}

}  // namespace

std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

std::string hub_cache_dir(const Environment& environment) {
  const auto variable = [&](const char* name) -> std::optional<std::string> {
    const auto value = environment(name);
    return value && !value->empty() ? std::optional(expand(*value, environment)) : std::nullopt;
  };
  if (const auto cache = variable("HF_HUB_CACHE")) return *cache;
  if (const auto cache = variable("HUGGINGFACE_HUB_CACHE")) return *cache;
  if (const auto home = variable("HF_HOME")) return joined(*home, "hub");
  if (const auto cache = variable("XDG_CACHE_HOME")) return joined(*cache, "huggingface/hub");
  return joined(home_dir(environment), ".cache/huggingface/hub");
}

Result<ModelLocation> locate_model(const std::string& name, const std::string& revision, const ModelParts& parts,
                                   const std::string& hub_cache) {
  if (is_dir(name) || is_file(name)) return locate_path(name, revision);
  const std::string_view asked = without_hub_address(name);
  const size_t colon = asked.rfind(':');
  const std::string part(colon == asked.npos ? "" : asked.substr(colon + 1)), repo(asked.substr(0, colon));
  if (!is_model_name(repo))
    return not_found(name + ": no such directory or file" +
                     (asked == name ? "" : "; the hub's name of a model is ORGANISATION/MODEL"));
  if (!revision.empty() && !is_revision(revision)) return invalid_argument("'" + revision + "' is not a revision");
  CachedModel model{repo, revision, {}};
  std::string folder = "models--" + repo;
  if (const size_t slash = folder.find('/'); slash != folder.npos) folder.replace(slash, 1, "--");
  model.dir = fs::path(hub_cache) / folder;
  if (!is_dir(model.dir)) {
    const std::string alike = name_but_for_case(hub_cache, folder);
    return not_found(name + ": no such directory or file, and not in the Hugging Face cache (" + hub_cache + "); " +
                     (alike.empty() ? "" : "it has " + alike + "; ") + "download it with: " + model.download_command());
  }
  LLMB_ASSIGN_OR_RETURN(const std::string commit, commit_of(model));
  const fs::path snapshot = model.dir / "snapshots" / commit;
  LLMB_ASSIGN_OR_RETURN(const std::string gguf, find_gguf(snapshot, repo, part, repo + ":PART-OF-ITS-NAME"));
  if (!gguf.empty())
    for (const std::string& file : gguf_parts(gguf))
      if (!is_file(file)) return incomplete(model, fs::path(file).lexically_relative(snapshot).string(), snapshot);
  if (!gguf.empty()) return ModelLocation{gguf, commit};
  if (!part.empty())
    return not_found(name + ": no GGUF file with \"" + part +
                     "\" in its name is in the Hugging Face cache; download it with: " + model.download_command() +
                     " --include '*" + part + "*'");
  LLMB_RETURN_IF_ERROR(check_complete(model, snapshot, parts));
  return ModelLocation{snapshot.string(), commit};
}

}  // namespace llmb
