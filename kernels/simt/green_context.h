// Stand-ins for the driver's green contexts: streams with multiprocessors of their own. Work in them runs as in all others.
#pragma once

#include <cstdint>

namespace llmb::simt {

// The driver's function of this name; null: it is none of these.
void* green_context_entry(const char* name);

// Which of the calls that make them fails, counted from 0; -1: none. What was made before is to be given back.
void fail_green_context_call(int call);
int num_green_contexts();  // that are there
int32_t num_green_sms();   // of them all

}  // namespace llmb::simt
