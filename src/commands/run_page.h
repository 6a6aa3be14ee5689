// Builds the page of `lockstep report RUN` from the files of the run.
#pragma once

#include "commands/run_record.h"
#include "page/page.h"

namespace lockstep::commands {

page::Page page_of_run(const RunRecord& run);
/// The figures on the page as JSON for programs, by the keys of metrics.jsonl. `page`: where the page was written.
nlohmann::ordered_json json_of_run(const RunRecord& run, const std::string& page);

}  // namespace lockstep::commands
