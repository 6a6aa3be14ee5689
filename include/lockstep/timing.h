// Finds the fastest of several candidates in such a way that other programs on the machine do not change the result.
#pragma once

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <vector>

namespace lockstep {

/// One call of a candidate.
struct CallTime {
  double seconds = 0;  // from its start to its end
  /// The sum of two times: that for which threads of this process were ready to run while other threads had their
  /// processor, summed over the threads; and that for which the host of a virtual machine ran something else on its
  /// processors, summed over the processors.
  double waiting_seconds = 0;
};

/// Calls `work` and measures it. Waiting is 0 where the system does not report it.
CallTime time_call(const std::function<void()>& work);

/// The seconds, summed over all processors, for which the host of this virtual machine ran something else on them
/// ("steal" in proc(5)): the eighth number in the first line of /proc/stat, in hundredths of a second. Returns 0 if
/// there is no such number.
double stolen_seconds(std::istream& stat);

struct Timing {
  std::vector<double> seconds;  // the shortest call of each candidate; infinity: it is not available
  bool is_under_load = false;   // other programs ran on these processors, or the times varied too much to be compared
};

/// Calls n candidates in alternation, so that a load that comes and goes affects all of them, and compares their
/// shortest calls. The rounds end when the three shortest calls of each candidate near the lead agree to within 5 %
/// ("K-best": Bryant and O'Hallaron, Computer Systems, 1st ed., section 9.4), when three rounds have left only one near
/// the lead, or after a quarter of a second and at least three rounds. A candidate is near the lead if one of its calls
/// would be without its waiting time. A candidate that is far behind is not called again. `call(i)` may return
/// infinity: i is not available.
Timing time_in_alternation(std::size_t n, const std::function<CallTime(std::size_t)>& call);

/// The index of the first candidate that is at most 2 % slower than the fastest, since such a difference is noise.
std::size_t fastest(const std::vector<double>& seconds);

}  // namespace lockstep
