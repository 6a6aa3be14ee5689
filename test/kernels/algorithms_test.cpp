// Ways of an op: what is remembered is taken, what is not is timed once, and without a table the first way is taken.
#include "lockstep/algorithms.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/backend.h"
#include "test/support/unit.h"

namespace lockstep {
namespace {

const std::vector<std::string> kWays{"slow", "fast", "middling"};

TEST(Algorithms, UnknownOnesAreTimedOnce) {
  const std::vector<double> seconds{3, 1, 2};
  int n_timed = 0;
  const auto time = [&](std::size_t i) {
    ++n_timed;
    return seconds[i];
  };
  Algorithms algorithms;
  EXPECT_EQ(algorithms.choose("a", kWays, time), 0u) << "the first while nothing is timed";
  EXPECT_EQ(n_timed, 0);
  EXPECT_FALSE(algorithms.is_complete());
  algorithms.time_unknown();
  EXPECT_TRUE(algorithms.is_complete());
  EXPECT_EQ(algorithms.choose("a", kWays, time), 1u);
  EXPECT_EQ(n_timed, 3);
  EXPECT_EQ(algorithms.choose("a", kWays, time), 1u);
  EXPECT_EQ(n_timed, 3) << "remembered";
  EXPECT_EQ(algorithms.choices(), (Algorithms::Choices{{"a", "fast"}}));
}

TEST(Algorithms, RememberedOnesAreTaken) {
  Algorithms algorithms({{"a", "middling"}, {"b", "gone"}});
  const auto never = [](std::size_t) -> double { throw std::logic_error("timed"); };
  EXPECT_EQ(algorithms.choose("a", kWays, never), 2u);
  EXPECT_TRUE(algorithms.is_complete());
  EXPECT_EQ(algorithms.choose("one way", std::vector<std::string>{"only"}, never), 0u);
  EXPECT_TRUE(algorithms.is_complete());
  EXPECT_EQ(algorithms.choose("b", kWays, never), 0u) << "a way that does not exist here is none";
  EXPECT_FALSE(algorithms.is_complete());
}

/// Every way of every direction gives the numbers of the fixed one, but for rounding.
TEST(Algorithms, OfConvolutions) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    Conv2dDescription d;
    d.x = {3, 8, 8, 64};
    d.out_channels = 32;
    d.window = 3;
    d.padding = 1;
    d.input_gradient = true;
    d.dtype = dtype;
    const auto timed = std::make_shared<Algorithms>();
    timed->time_unknown();
    const auto fixed = make_backend({.device = "cpu", .threads = 2});
    d.x_layout = d.y_layout = fixed->activation_layout(d.x, dtype);
    const auto first = make_backend({.device = "cpu", .threads = 2, .algorithms = timed});
    const std::string chosen = first->conv2d(d)->describe();
    // With what was found, another backend plans the same, and times nothing.
    const auto found = std::make_shared<Algorithms>(timed->choices());
    EXPECT_EQ(make_backend({.device = "cpu", .threads = 2, .algorithms = found})->conv2d(d)->describe(), chosen);
    EXPECT_TRUE(found->is_complete());

    const test::UnitInputs inputs = test::rounded_to(DType::bf16, test::make_inputs(d, 1));
    const test::UnitOutputs expected = test::run(*fixed, d, inputs, {});
    // And the other way round in every key.
    for (const char* way : {"amx", "direct", "blocks"}) {
      Algorithms::Choices others = timed->choices();
      for (auto& [key, name] : others) name = way;
      const auto backend =
          make_backend({.device = "cpu", .threads = 2, .algorithms = std::make_shared<Algorithms>(others)});
      SCOPED_TRACE(backend->conv2d(d)->describe());
      const test::UnitOutputs actual = test::run(*backend, d, inputs, {});
      test::UnitOutputs magnitude = expected;
      for (auto* values : {&magnitude.y, &magnitude.dx}) values->assign(values->size(), 30.0f);
      magnitude.dweight.assign(magnitude.dweight.size(), 100.0f);
      test::expect_within_rounding(actual, expected, magnitude, test::lengths(d), dtype);
    }
  }
}

}  // namespace
}  // namespace lockstep
