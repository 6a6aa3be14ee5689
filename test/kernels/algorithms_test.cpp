// Algorithms of an op: a stored choice is used, others are timed once, and without a table the first one is used.
#include "lockstep/algorithms.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/backend.h"
#include "lockstep/error.h"
#include "lockstep/ops/conv2d.h"
#include "test/support/unit.h"

namespace lockstep {
namespace {

const std::vector<std::string> kNames{"slow", "fast", "middling"};

TEST(Algorithms, UnknownChoicesAreTimedOnce) {
  const std::vector<double> seconds{3, 1, 2};
  int n_timed = 0;
  const auto time = [&](std::size_t i) {
    ++n_timed;
    return seconds[i];
  };
  Algorithms algorithms;
  EXPECT_EQ(algorithms.choose("a", kNames, time), 0u) << "the first while nothing is timed";
  EXPECT_EQ(n_timed, 0);
  EXPECT_FALSE(algorithms.is_complete());
  algorithms.enable_timing();
  EXPECT_TRUE(algorithms.is_complete());
  EXPECT_EQ(algorithms.choose("a", kNames, time), 1u);
  EXPECT_EQ(n_timed, 3);
  EXPECT_EQ(algorithms.choose("a", kNames, time), 1u);
  EXPECT_EQ(n_timed, 3) << "remembered";
  EXPECT_EQ(algorithms.choices(), (Algorithms::Choices{{"a", "fast"}}));
}

TEST(Algorithms, RememberedChoicesAreUsed) {
  Algorithms algorithms({{"a", "middling"}, {"b", "gone"}});
  const auto never = [](std::size_t) -> double { throw std::logic_error("timed"); };
  EXPECT_EQ(algorithms.choose("a", kNames, never), 2u);
  EXPECT_TRUE(algorithms.is_complete());
  EXPECT_EQ(algorithms.choose("one algorithm", std::vector<std::string>{"only"}, never), 0u);
  EXPECT_TRUE(algorithms.is_complete());
  EXPECT_EQ(algorithms.choose("b", kNames, never), 0u) << "an algorithm that does not exist here is ignored";
  EXPECT_FALSE(algorithms.is_complete());
}

TEST(Algorithms, AlgorithmsThatFailAreNotUsed) {
  Algorithms algorithms;
  int n_called = 0;
  algorithms.enable_timing([&] { ++n_called; });
  const auto only_the_last = [](std::size_t i) -> double {
    if (i < 2) fail(ErrorCode::out_of_memory, "no memory for its workspace");
    return 5;
  };
  EXPECT_EQ(algorithms.choose("a", kNames, only_the_last), 2u);
  EXPECT_EQ(algorithms.choices().at("a"), "middling");
  const auto none = [](std::size_t) -> double { fail(ErrorCode::out_of_memory, "no memory for its workspace"); };
  EXPECT_EQ(algorithms.choose("b", kNames, none), 0u);
  EXPECT_FALSE(algorithms.choices().contains("b")) << "another start may find one";
  EXPECT_EQ(n_called, 6);
  algorithms.disable_timing();
  EXPECT_EQ(algorithms.choose("b", kNames, only_the_last), 0u);
  EXPECT_EQ(n_called, 6);
}

// A choice that the limit interrupts uses the first algorithm, like all later ones.
TEST(Algorithms, TimingEndsAtItsLimit) {
  int n_timed = 0;
  const auto time = [&](std::size_t i) {
    ++n_timed;
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    return i == 1 ? 1.0 : 2.0;
  };
  const auto time_all = [&] {
    ++n_timed;
    return Timing{.seconds = {3, 1, 2}};
  };
  Algorithms algorithms;
  algorithms.limit_timing(0.1);
  algorithms.enable_timing();
  EXPECT_EQ(algorithms.choose("interrupted", kNames, time), 0u);
  EXPECT_LE(n_timed, 2);
  n_timed = 0;
  EXPECT_EQ(algorithms.choose("late", kNames, time), 0u);
  EXPECT_EQ(algorithms.choose("late, all at once", kNames, time_all), 0u);
  EXPECT_EQ(n_timed, 0);
  EXPECT_EQ(algorithms.untimed(), (Algorithms::Keys{"interrupted", "late", "late, all at once"}));
  EXPECT_EQ(algorithms.choices().at("late"), "slow") << "all ranks, and a resumed run, use the same";

  algorithms.remember({}, {}, {"late"});
  algorithms.limit_timing(1e6);
  algorithms.enable_timing();
  EXPECT_EQ(algorithms.choose("late", kNames, time), 1u);
  EXPECT_TRUE(algorithms.untimed().empty());
}

TEST(Algorithms, ChoicesMadeUnderLoadAreMarkedUntilTheyAreMadeAgain) {
  Algorithms algorithms;
  algorithms.remember({{"c", "fast"}}, {"c"});
  algorithms.enable_timing();
  bool is_under_load = true;
  const auto time_all = [&] { return Timing{.seconds = {3, 1, 2}, .is_under_load = is_under_load}; };
  EXPECT_EQ(algorithms.choose("a", kNames, time_all), 1u);
  EXPECT_EQ(algorithms.under_load(), (Algorithms::Keys{"a", "c"}));
  is_under_load = false;
  EXPECT_EQ(algorithms.choose("a", kNames, time_all), 1u) << "used until the program starts again";
  EXPECT_EQ(algorithms.under_load(), (Algorithms::Keys{"a", "c"}));
  EXPECT_EQ(algorithms.choose("b", kNames, time_all), 1u);
  algorithms.remember({}, {"a"});
  EXPECT_EQ(algorithms.choose("a", kNames, time_all), 1u);
  EXPECT_TRUE(algorithms.under_load().empty());
  const auto none = [] { return Timing{.seconds = std::vector<double>(3, HUGE_VAL), .is_under_load = true}; };
  EXPECT_EQ(algorithms.choose("d", kNames, none), 0u);
  EXPECT_FALSE(algorithms.choices().contains("d"));
  EXPECT_TRUE(algorithms.under_load().empty());
}

/// Every algorithm for each direction computes the same values as the fixed one, up to rounding.
void expect_algorithms_agree(const Conv2dDescription& d) {
  const auto timed = std::make_shared<Algorithms>();
  timed->enable_timing();
  const auto fixed = make_backend({.device = "cpu", .threads = 2});
  const auto first = make_backend({.device = "cpu", .threads = 2, .algorithms = timed});
  const std::string chosen = first->make(d)->describe();
  // With the stored choices, another backend makes the same plan, and times nothing.
  const auto found = std::make_shared<Algorithms>(timed->choices());
  EXPECT_EQ(make_backend({.device = "cpu", .threads = 2, .algorithms = found})->make(d)->describe(), chosen);
  EXPECT_TRUE(found->is_complete());

  const test::UnitInputs inputs = test::rounded_to(DType::bf16, test::make_inputs(d, 1));
  const test::UnitOutputs expected = test::run(*fixed, d, inputs, {});
  // Then each algorithm in turn is set for all keys.
  for (const char* algorithm :
       {"amx", "direct", "blocks", "matmul", "winograd", "widened direct", "widened blocks", "widened matmul"}) {
    Algorithms::Choices others = timed->choices();
    for (auto& [key, name] : others) name = algorithm;
    const auto backend =
        make_backend({.device = "cpu", .threads = 2, .algorithms = std::make_shared<Algorithms>(others)});
    SCOPED_TRACE(backend->make(d)->describe());
    const test::UnitOutputs actual = test::run(*backend, d, inputs, {});
    test::UnitOutputs magnitude = expected;
    for (auto* values : {&magnitude.y, &magnitude.dx}) values->assign(values->size(), 30.0f);
    magnitude.dweight.assign(magnitude.dweight.size(), 100.0f);
    test::expect_within_rounding(actual, expected, magnitude, test::lengths(d), d.dtype);
  }
}

TEST(Algorithms, AllAlgorithmsOfConvolutionsAgree) {
  for (const DType dtype : {DType::fp32, DType::bf16})
    for (const Layout layout : {Layout::nhwc, Layout::nchw16c})
      for (const int stride : {1, 2})
        for (const int kernel_size : {1, 3}) {
          if (dtype == DType::bf16 && layout != Layout::nhwc) continue;
          Conv2dDescription d{.x = {3, 8, 7, 64}, .out_channels = 32, .kernel_size = kernel_size, .stride = stride};
          d.padding = kernel_size / 2;
          d.dtype = dtype;
          d.x_layout = d.y_layout = layout;
          expect_algorithms_agree(d);
        }
}

/// Algorithms are timed with the final layout of the parameter, which follows from the fixed choice for forward.
TEST(Algorithms, DoNotChangeTheLayoutOfWeights) {
  Conv2dDescription d{.x = {2, 8, 8, 64}, .out_channels = 32};
  const std::string fixed = make_backend({.device = "cpu"})->make(d)->weight_layout()->describe();
  const auto timed = std::make_shared<Algorithms>();
  timed->enable_timing();
  (void)make_backend({.device = "cpu", .algorithms = timed})->make(d);
  Algorithms::Choices choices = timed->choices();
  for (auto& [key, algorithm] : choices) {
    EXPECT_NE(key.find("weights " + fixed), std::string::npos) << key;
    algorithm = "matmul";
  }
  const auto others = std::make_shared<Algorithms>(choices);
  EXPECT_EQ(make_backend({.device = "cpu", .algorithms = others})->make(d)->weight_layout()->describe(), fixed);
}

TEST(Algorithms, LayoutsAreChosenAndTimedToo) {
  const auto fixed = make_backend({.device = "cpu"});
  if (fixed->activation_layout({2, 8, 8, 64}, DType::fp32) == Layout::nhwc) GTEST_SKIP() << "one layout here";
  const auto algorithms = std::make_shared<Algorithms>(
      Algorithms::Choices{{"layout 8x8x64, fp32", "nhwc"}, {"layout 4x4x64, fp32", "nchw16c"}});
  const auto backend = make_backend({.device = "cpu", .algorithms = algorithms});
  EXPECT_EQ(backend->activation_layout({2, 8, 8, 64}, DType::fp32), Layout::nhwc);
  EXPECT_EQ(backend->activation_layout({1, 8, 8, 64}, DType::fp32), Layout::nhwc) << "whatever the batch";
  EXPECT_EQ(backend->activation_layout({2, 4, 4, 64}, DType::fp32), Layout::nchw16c);
  EXPECT_EQ(backend->activation_layout({2, 4, 4, 64}, DType::bf16), Layout::nhwc);
  EXPECT_EQ(backend->activation_layout({2, 4, 4, 24}, DType::fp32), Layout::nhwc);
  EXPECT_EQ(backend->activation_layout({2, 1, 1, 64}, DType::fp32), Layout::nchw16c)
      << "layouts of vectors are not timed";
  EXPECT_TRUE(algorithms->is_complete());
  EXPECT_EQ(backend->activation_layout({2, 6, 6, 64}, DType::fp32), Layout::nchw16c) << "the fixed one";
  EXPECT_FALSE(algorithms->is_complete());
  algorithms->enable_timing();
  const Layout timed = backend->activation_layout({2, 6, 6, 64}, DType::fp32);
  EXPECT_EQ(algorithms->choices().at("layout 6x6x64, fp32"), name(timed));
  EXPECT_EQ(algorithms->choices().size(), 3u) << "nothing else is stored for it";
}

}  // namespace
}  // namespace lockstep
