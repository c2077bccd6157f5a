#include "grammar/schema_formats.h"

#include <map>
#include <set>

namespace llmb::grammar {

namespace {

// RFC 3339, without leap seconds.
const std::string kDate =
    "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|"
    "2[0-8]))|"
    "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
const std::string kTime = "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?(?:[Zz]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";
const std::string kDayTime = "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)";
const std::string kDuration =
    "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:" + kDayTime + ")?|" + kDayTime + ")";

// RFC 4291 and RFC 2673.
const std::string kByte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
const std::string kIpv4 = kByte + "(?:\\." + kByte + "){3}";

std::string ipv6() {
  const std::string h = "[0-9a-fA-F]{1,4}", last = "(?:" + h + ":" + h + "|" + kIpv4 + ")";
  std::string all = "(?:(?:" + h + ":){6}" + last + "|::(?:" + h + ":){5}" + last;
  for (int before = 0; before < 5; ++before) {
    const std::string begin =
        before == 0 ? "(?:" + h + ")?" : "(?:(?:" + h + ":){0," + std::to_string(before) + "}" + h + ")?";
    const int behind = 4 - before;
    all += "|" + begin + "::" + (behind == 0 ? "" : "(?:" + h + ":){" + std::to_string(behind) + "}") + last;
  }
  all += "|(?:(?:" + h + ":){0,5}" + h + ")?::" + h + "|(?:(?:" + h + ":){0,6}" + h + ")?::)";
  return all;
}

// RFC 3986.
const std::string kUnreserved = "A-Za-z0-9\\-._~", kMarks = "!$&'()*+,;=", kPercent = "%[0-9A-Fa-f]{2}";
const std::string kPathChar = "(?:[" + kUnreserved + kMarks + ":@]|" + kPercent + ")";
const std::string kNoColon = "(?:[" + kUnreserved + kMarks + "@]|" + kPercent + ")";
const std::string kSegments = "(?:/" + kPathChar + "*)*";
const std::string kTail = "(?:\\?(?:" + kPathChar + "|[/?])*)?(?:#(?:" + kPathChar + "|[/?])*)?";

std::string authority() {
  const std::string name = "(?:[" + kUnreserved + kMarks + "]|" + kPercent + ")*";
  const std::string user = "(?:(?:[" + kUnreserved + kMarks + ":]|" + kPercent + ")*@)?";
  return "//" + user + "(?:\\[(?:" + ipv6() + "|[vV][0-9A-Fa-f]+\\.[" + kUnreserved + kMarks + ":]+)\\]|" + name +
         ")(?::\\d*)?" + kSegments;
}

std::string uri() {
  return "[A-Za-z][A-Za-z0-9+.\\-]*:(?:" + authority() + "|/(?:" + kPathChar + "+" + kSegments + ")?|" + kPathChar +
         "+" + kSegments + ")?" + kTail;
}

std::string uri_reference() {
  return "(?:" + uri() + "|(?:" + authority() + "|/(?:" + kPathChar + "+" + kSegments + ")?|" + kNoColon + "+" +
         kSegments + ")?" + kTail + ")";
}

const std::string kPointer = "(?:/(?:[^/~]|~[01])*)*";
const std::string kAtom = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+", kLabel = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";

}  // namespace

FormatKind find_format(const std::string& name, std::string* pattern) {
  static const std::map<std::string, std::string> kPatterns = {
      {"date", kDate},
      {"time", kTime},
      {"date-time", kDate + "[Tt]" + kTime},
      {"duration", kDuration},
      {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
      {"ipv4", kIpv4},
      {"ipv6", ipv6()},
      {"email", kAtom + "(?:\\." + kAtom + ")*@" + kLabel + "(?:\\." + kLabel + ")*"},  // the plain form
      {"uri", uri()},
      {"uri-reference", uri_reference()},
      {"json-pointer", kPointer},
      {"relative-json-pointer", "(?:0|[1-9]\\d*)(?:#|" + kPointer + ")"},
  };
  static const std::set<std::string> kOthers = {"hostname",      "idn-email",    "idn-hostname", "iri",
                                                "iri-reference", "uri-template", "regex",        "host-name",
                                                "ip-address",    "color",        "style",        "phone"};
  const auto at = kPatterns.find(name);
  if (at == kPatterns.end()) return kOthers.contains(name) ? FormatKind::kRefused : FormatKind::kNone;
  *pattern = at->second;
  return FormatKind::kEnforced;
}

}  // namespace llmb::grammar
