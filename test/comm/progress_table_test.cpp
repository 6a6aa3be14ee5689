// A rank's entry in the memory that the ranks of a node share: the lock that shows that its process is alive.
#include "comm/progress_table.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

/// The error message when another process opens the entry of `local_rank`. (One process may lock a byte twice.)
std::string message_of_opening(const std::string& path, int local_rank) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text = "opened";
    errno = 0;
    try {
      (void)ProgressTable::open(path, local_rank, 2);
    } catch (const Error& error) {
      text = error.what();
    }
    ::_exit(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text(1000, '\0');
  const ssize_t n = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return text.substr(0, n < 0 ? 0 : static_cast<std::size_t>(n));
}

TEST(ProgressTable, SaysWhyAnEntryCannotBeLocked) {
  const ProgressTable table = ProgressTable::create(2);
  EXPECT_EQ(message_of_opening(table.path(), 1), "opened");
  const std::string message = message_of_opening(table.path(), 0);
  EXPECT_NE(message.find("cannot lock byte 0 of " + table.path()), std::string::npos) << message;
  EXPECT_NE(message.find(std::strerror(EAGAIN)), std::string::npos) << message;
}

}  // namespace
}  // namespace lockstep::comm
