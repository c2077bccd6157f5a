#include "job/final_report.h"

#include "io/json_writer.h"

namespace llmb {

namespace {

std::string with_separators(int64_t value) {
  std::string digits = std::to_string(value);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

}  // namespace

std::string final_report_json(const FinalReport& report, int exit_code) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  const auto integer = [&](const char* name, int64_t value) {
    json.key(name);
    json.integer(value);
  };
  integer("exit_code", exit_code);
  integer("done", report.done);
  integer("failed", report.failed);
  integer("skipped", report.skipped);
  json.key("left");
  if (report.left) json.integer(*report.left);
  else json.null();
  json.key("resumable");
  json.boolean(report.resumable);
  json.key("output");
  json.string(report.output);
  json.end_object();
  return text;
}

std::string interrupted_message(const FinalReport& report) {
  return with_separators(report.done) + " done, " + (report.left ? with_separators(*report.left) : "more") + " left" +
         (report.resumable ? ", run again to continue" : "");
}

}  // namespace llmb
