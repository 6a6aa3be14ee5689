// Headers of libraries that most tests include, compiled once (PRECOMPILED in the Makefile). None of the project is
// among them, so that a change of its headers compiles no more than before.
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
