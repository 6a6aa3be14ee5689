// Library headers that most tests include, compiled once (PRECOMPILED in the Makefile). Headers of the project are not
// among them, so that changing one recompiles no more than before.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>
