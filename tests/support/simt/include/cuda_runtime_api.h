// Stand-in for CUDA's header of the same name: the part for hosts.
#pragma once

#include "tests/support/simt/runtime.h"
#include "tests/support/simt/types.h"
