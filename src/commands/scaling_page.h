// The report of a scaling study as one HTML page.
#pragma once

#include "page/page.h"
#include "scaling/results.h"

namespace lockstep::commands {

page::Page page_of_study(const scaling::Results& results);

}  // namespace lockstep::commands
