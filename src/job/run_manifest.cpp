#include "job/run_manifest.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/content_hash.h"

namespace llmb {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<RunState, const char*> kStateNames[] = {
    {RunState::kStarting, "starting"}, {RunState::kRunning, "running"}, {RunState::kComplete, "complete"}};

std::string to_hex(uint64_t hash) {
  std::string digits(16, '0');
  for (int i = 15; i >= 0; --i, hash >>= 4) digits[i] = "0123456789abcdef"[hash & 15];
  return digits;
}

std::optional<uint64_t> from_hex(const Json& value) {
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.get_ref<const std::string&>();
  uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return hash;
}

const Json* member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

// nullopt: no integer, or not one of these 64 bits.
std::optional<int64_t> signed_integer(const Json* value) {
  if (!value || !value->is_number_integer()) return std::nullopt;
  if (value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX) return std::nullopt;
  return value->get<int64_t>();
}

std::optional<int64_t> count(const Json* value) {
  const auto number = signed_integer(value);
  return number && *number >= 0 ? number : std::nullopt;
}

Json identity_json(const FileFingerprint& file) {
  const FileIdentity& is = file.identity;
  return {{"size", is.size}, {"mtime_ns", is.mtime_ns}, {"ctime_ns", is.ctime_ns}, {"inode", is.inode}};
}

std::optional<FileFingerprint> parse_identity(const std::string& name, const Json& value) {
  if (!value.is_object()) return std::nullopt;
  FileFingerprint file;
  file.name = name;
  const auto size = count(member(value, "size")), mtime_ns = signed_integer(member(value, "mtime_ns"));
  const Json *inode = member(value, "inode"), *ctime = member(value, "ctime_ns");
  const auto ctime_ns = ctime ? signed_integer(ctime) : 0;  // older builds did not write it
  if (!size || !mtime_ns || !ctime_ns || !inode || !inode->is_number_unsigned()) return std::nullopt;
  file.identity = {*size, *mtime_ns, *ctime_ns, inode->get<uint64_t>()};
  return file;
}

std::optional<FileFingerprint> parse_file(const std::string& name, const Json& value) {
  auto file = parse_identity(name, value);
  const Json* hash = file ? member(value, "xxh64") : nullptr;
  const auto content_hash = hash ? from_hex(*hash) : std::nullopt;
  if (!content_hash) return std::nullopt;
  file->content_hash = *content_hash;
  return file;
}

Json complete_json(const CompleteJob& job) {
  Json inputs = Json::array();
  for (const FileFingerprint& input : job.inputs) {
    inputs.push_back(identity_json(input));
    inputs.back()["name"] = input.name;
  }
  Json json = {{"num_records", job.num_records},
               {"num_failed", job.num_failed},
               {"output", identity_json(job.output)},
               {"inputs", inputs}};
  if (job.index) json["index"] = identity_json(*job.index);
  return json;
}

// nullopt: something has the wrong shape.
std::optional<CompleteJob> parse_complete(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  const Json *inputs = member(json, "inputs"), *output = member(json, "output");
  const auto num_records = count(member(json, "num_records")), num_failed = count(member(json, "num_failed"));
  if (!inputs || !inputs->is_array() || !output || !num_records || !num_failed || *num_failed > *num_records)
    return std::nullopt;
  CompleteJob job;
  for (const Json& input : *inputs) {
    const Json* name = input.is_object() ? member(input, "name") : nullptr;
    auto file = name && name->is_string() ? parse_identity(name->get<std::string>(), input) : std::nullopt;
    if (!file) return std::nullopt;
    job.inputs.push_back(std::move(*file));
  }
  auto file = parse_identity("output", *output);
  if (!file) return std::nullopt;
  job.output = std::move(*file);
  if (const Json* index = member(json, "index")) {
    job.index = parse_identity("index", *index);
    if (!job.index) return std::nullopt;
  }
  job.num_records = *num_records;
  job.num_failed = *num_failed;
  return job;
}

// nullopt: something has the wrong shape.
std::optional<InputTally> parse_input(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  const Json* hash = member(json, "digest");
  const auto num_lines = count(member(json, "num_lines"));
  const auto digest = hash ? from_hex(*hash) : std::nullopt;
  if (!num_lines || !digest) return std::nullopt;
  InputTally input;
  input.num_lines = *num_lines;
  input.digest = *digest;
  return input;
}

// False: something has the wrong shape.
bool parse_fingerprint(const Json& json, Fingerprint* out) {
  const Json *settings = member(json, "settings"), *files = member(json, "files");
  if (!settings || !settings->is_object() || !files || !files->is_object()) return false;
  for (const auto& [name, value] : settings->items()) {
    if (!value.is_string()) return false;
    out->settings.emplace_back(name, value.get<std::string>());
  }
  for (const auto& [name, value] : files->items()) {
    auto file = parse_file(name, value);
    if (!file) return false;
    out->files.push_back(std::move(*file));
  }
  return true;
}

template <typename List, typename Name>
auto find_by_name(const List& list, const std::string& name, Name name_of) {
  return std::find_if(list.begin(), list.end(), [&](const auto& entry) { return name_of(entry) == name; });
}

// Walks two lists of named things: both(a, b), gone(a), added(b).
template <typename List, typename Name, typename Both, typename Gone, typename Added>
void compare(const List& recorded, const List& current, Name name_of, Both both, Gone gone, Added added) {
  for (const auto& entry : recorded) {
    const auto found = find_by_name(current, name_of(entry), name_of);
    if (found == current.end()) gone(entry);
    else both(entry, *found);
  }
  for (const auto& entry : current)
    if (find_by_name(recorded, name_of(entry), name_of) == recorded.end()) added(entry);
}

}  // namespace

std::string format_manifest(const RunManifest& manifest) {
  Json json;
  json["format"] = kManifestFormat;
  json["build"] = manifest.build;
  if (manifest.created != 0) json["created"] = manifest.created;
  for (const auto& [state, name] : kStateNames)
    if (state == manifest.state) json["state"] = name;
  Json settings = Json::object(), files = Json::object();
  for (const auto& [name, value] : manifest.fingerprint.settings) settings[name] = value;
  for (const FileFingerprint& file : manifest.fingerprint.files) {
    files[file.name] = identity_json(file);
    files[file.name]["xxh64"] = to_hex(file.content_hash);
  }
  json["fingerprint"] = {{"settings", std::move(settings)}, {"files", std::move(files)}};
  if (manifest.input) json["input"] = {{"num_lines", manifest.input->num_lines}, {"digest", to_hex(manifest.input->digest)}};
  if (manifest.complete) json["complete"] = complete_json(*manifest.complete);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<RunManifest> parse_manifest(std::string_view text, const std::string& name) {
  const auto damaged = [&](const char* what) {
    return data_loss(
        name + ": " + what +
        ", so it is not known where the output beside it comes from; move both away, or start over with `restart`");
  };
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return damaged("damaged or cut short (not a JSON object)");
  const Json *format = member(json, "format"), *build = member(json, "build"), *state = member(json, "state"),
             *fingerprint = member(json, "fingerprint");
  // Unsigned as parsed: a number from 0.
  if (!format || !format->is_number_unsigned() || *format == 0) return damaged("not a run manifest (no format number)");
  if (format->get<uint64_t>() > uint64_t{kManifestFormat})
    return unsupported(name + ": written by a newer version of llm-batch (manifest format " + format->dump() +
                       ", known: " + std::to_string(kManifestFormat) +
                       "); use that version, or start over with `restart`");
  RunManifest manifest;
  if (!build || !build->is_string()) return damaged("damaged (no build)");
  manifest.build = build->get<std::string>();
  const auto* known = std::find_if(std::begin(kStateNames), std::end(kStateNames), [&](const auto& entry) {
    return state && state->is_string() && *state == entry.second;
  });
  if (known == std::end(kStateNames)) return damaged("damaged (no known state)");
  manifest.state = known->first;
  if (!fingerprint || !fingerprint->is_object() || !parse_fingerprint(*fingerprint, &manifest.fingerprint))
    return damaged("damaged (fingerprint)");
  if (const Json* created = member(json, "created")) {
    const auto seconds = count(created);
    if (!seconds) return damaged("damaged (created)");
    manifest.created = *seconds;
  }
  if (const Json* input = member(json, "input")) {
    manifest.input = parse_input(*input);
    if (!manifest.input) return damaged("damaged (input)");
  }
  const Json* complete = member(json, "complete");
  if (complete) manifest.complete = parse_complete(*complete);
  if (complete && !manifest.complete) return damaged("damaged (complete)");
  return manifest;
}

uint64_t job_hash(const Fingerprint& fingerprint) {
  std::string text;  // each part with its length, so that no two fingerprints make the same
  const auto add = [&](const std::string& part) { text += std::to_string(part.size()) + ":" + part; };
  for (const auto& [name, value] : fingerprint.settings) {
    if (name == "no_metrics" || name == kShardName || name == kShardByName) continue;
    add(name);
    add(value);
  }
  for (const FileFingerprint& file : fingerprint.files) {
    add(file.name);
    add(std::to_string(file.identity.size) + " " + to_hex(file.content_hash));
  }
  return content_hash(text);
}

Fingerprint without_shard(Fingerprint fingerprint) {
  std::erase_if(fingerprint.settings,
                [](const auto& setting) { return setting.first == kShardName || setting.first == kShardByName; });
  return fingerprint;
}

std::string setting_of(const Fingerprint& fingerprint, const char* name) {
  for (const auto& [setting, value] : fingerprint.settings)
    if (setting == name) return value;
  return "";
}

bool holds_rows(const Fingerprint& fingerprint) { return setting_of(fingerprint, kOutputFormatName) == "\"npy\""; }

std::vector<std::string> fingerprint_differences(const Fingerprint& recorded, const Fingerprint& current) {
  std::vector<std::string> differences;
  // One more adapter changes no answer: lines that named it before are error records.
  const auto is_of_adapter = [](const FileFingerprint& file) { return file.name.starts_with("adapter/"); };
  const bool had_adapters = std::any_of(recorded.files.begin(), recorded.files.end(), is_of_adapter);
  compare(
      recorded.settings, current.settings, [](const auto& setting) { return setting.first; },
      [&](const auto& before, const auto& now) {
        if (before.second != now.second)
          differences.push_back(before.first + " was " + before.second + " and is " + now.second);
      },
      [&](const auto& before) {
        differences.push_back(before.first + " was " + before.second + " and is not set now");
      },
      [&](const auto& now) { differences.push_back(now.first + " was not known and is " + now.second); });
  compare(
      recorded.files, current.files, [](const FileFingerprint& file) { return file.name; },
      [&](const FileFingerprint& before, const FileFingerprint& now) {
        if (before.identity.size != now.identity.size || before.content_hash != now.content_hash)
          differences.push_back("file " + before.name + " was " + to_hex(before.content_hash) + " and is " +
                                to_hex(now.content_hash) + " (its content's hash)");
      },
      [&](const FileFingerprint& before) { differences.push_back("file " + before.name + " was used and is gone"); },
      [&](const FileFingerprint& now) {
        if (!had_adapters || !is_of_adapter(now))
          differences.push_back("file " + now.name + " was not there and is now");
      });
  return differences;
}

}  // namespace llmb
