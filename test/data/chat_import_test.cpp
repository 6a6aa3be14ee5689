// The import of conversations: both formats of the source, slices, truncation, what is left out, and wrong input.
#include "data/chat_import.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "data/text_range.h"
#include "test/data/text_files.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

/// Ids are the bytes of the text. Each message is its content and 256; a message of the assistant is an answer.
ChatEncoder byte_encoder() {
  return {.encode =
              [](const text::Chat& chat) {
                text::EncodedConversation out;
                for (const text::ChatMessage& message : chat.messages) {
                  const std::size_t begin = out.ids.size();
                  for (const char c : message.content) out.ids.push_back(static_cast<unsigned char>(c));
                  out.ids.push_back(256);
                  if (message.role == "assistant" && message.is_trained)
                    out.answers.emplace_back(begin, out.ids.size());
                  require(message.content != "bad", ErrorCode::usage, "the template refuses this");
                }
                return out;
              },
          .description = {.vocabulary_size = 257,
                          .tokenizer_hash = "a hash",
                          .end_token = {},
                          .source = {},
                          .chat_template = "{{ template }}",
                          .chat_template_source = "chatml",
                          .special_tokens = {}},
          .tokenizer_path = "",
          .tokenizer_json = "{}"};
}

class ChatImport : public ::testing::Test {
 protected:
  ChatImportResult run_import(const std::string& content, ChatImportOptions options = {}) {
    write_all(folder / "in.jsonl", content);
    options.source = folder / "in.jsonl";
    options.output = output;
    options.replace = true;
    return import_chat(options, byte_encoder());
  }
  void refuses(const std::string& content, const std::string& part, ErrorCode code = ErrorCode::data_source) {
    fs::remove(output);
    EXPECT_ERROR(code, part, run_import(content));
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator{}), 1) << "nothing is left";
  }
  /// The conversations as texts, "|" after each message; answers in brackets.
  std::vector<std::string> texts() const {
    const TextRange set(output);
    std::vector<std::string> out;
    for (std::int64_t i = 0; i < set.n_documents(); ++i) {
      const Conversation c = set.conversation(i);
      std::string text;
      for (std::size_t t = 0; t < c.tokens.size(); ++t) {
        for (const auto& answer : c.answers)
          if (std::cmp_equal(answer.first, t)) text += '[';
        text += c.tokens[t] == 256 ? '|' : static_cast<char>(c.tokens[t]);
        for (const auto& answer : c.answers)
          if (std::cmp_equal(answer.second, t + 1)) text += ']';
      }
      out.push_back(text);
    }
    return out;
  }

  TemporaryFolder folder;
  std::string output = folder / "out.h5";
};

using Texts = std::vector<std::string>;

std::string line(const std::string& question, const std::string& answer) {
  return R"({"source": "x", "messages": [{"role": "user", "content": ")" + question +
         R"("}, {"role": "assistant", "content": ")" + answer + "\"}]}\n";
}

TEST_F(ChatImport, LinesOfMessages) {
  const ChatImportResult result =
      run_import("\xef\xbb\xbf" + line("a", "b") + "\n" +
                 R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q\n"}, )"
                 R"({"role": "assistant", "content": "", "name": 7}, {"role": "user", "content": "r"}, )"
                 R"({"content": "t\u00e9", "role": "assistant"}]})"
                 "\n" +
                 R"({"messages": [{"role": "user", "content": "no answer"}]})");
  EXPECT_EQ(texts(), (Texts{"a|[b|]", "s|q\n|[|]r|[t\xc3\xa9|]"}));
  EXPECT_EQ(result.n_conversations, 2);
  EXPECT_EQ(result.n_tokens, 16);
  EXPECT_EQ(result.n_answers, 3);
  EXPECT_EQ(result.n_answer_tokens, 7);
  EXPECT_EQ(result.n_without_assistant, 1);
  EXPECT_EQ(result.n_left_out(), 1);
  const TextFile layout = open_text_file(InputFile(output));
  EXPECT_EQ(layout.description.source, "in.jsonl");
  EXPECT_EQ(layout.description.chat_template_source, "chatml");
  EXPECT_EQ(layout.description.end_token, std::nullopt) << "that of the template";
}

TEST_F(ChatImport, FieldsAreThoseThatTransformersGivesToTemplates) {
  write_all(
      folder / "in.jsonl",
      R"({"tools": [{"name": "f", "a": 1}], "messages": [{"role": "user", "content": "a", "name": "Jo"}, )"
      R"({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"z": 1, "b": 2}}}]}, )"
      R"({"role": "tool", "content": "c", "weight": null}, )"
      R"({"role": "assistant", "content": "d", "reasoning": "why", "train": false}, )"
      R"({"role": "assistant", "content": "e", "weight": 0}, {"role": "assistant", "content": "f", "weight": 1}]})");
  ChatSource source(folder / "in.jsonl");
  ChatRecord record;
  ASSERT_TRUE(source.next(record));
  const text::Chat chat = source.chat_of(record);
  EXPECT_EQ(chat.variables["tools"].dump(), R"([{"name":"f","a":1}])") << "in the order of the data";
  ASSERT_EQ(chat.messages.size(), 6u);
  EXPECT_EQ(chat.messages[0].fields["name"], "Jo");
  EXPECT_FALSE(chat.messages[1].fields.contains("content"));
  EXPECT_EQ(chat.messages[1].fields["tool_calls"].dump(), R"([{"function":{"name":"f","arguments":{"z":1,"b":2}}}])");
  EXPECT_EQ(chat.messages[2].role, "tool");
  EXPECT_EQ(chat.messages[3].fields["reasoning_content"], "why");
  EXPECT_EQ(chat.messages[3].fields["thinking"], "why");
  std::string trained;
  for (const text::ChatMessage& message : chat.messages) trained += message.is_trained ? '1' : '0';
  EXPECT_EQ(trained, "111001");
}

TEST_F(ChatImport, AlpacaAndArrays) {
  const std::string elements =
      R"({"instruction": "i", "input": "", "output": "o"}, {"instruction": "i", "input": "n", "output": "o"},)"
      R"({"instruction": "i", "output": "o", "system": "s"})";
  run_import(" \n[" + elements + "]\n");
  const Texts expected{"i|[o|]", "i\n\nn|[o|]", "s|i|[o|]"};
  EXPECT_EQ(texts(), expected);
  run_import(R"({"instruction": "i", "input": "n", "output": "o"})"
             "\n" +
             line("a", "b"));
  EXPECT_EQ(texts(), (Texts{expected[1], "a|[b|]"}));
}

TEST_F(ChatImport, ShareGptAndPromptsWithCompletions) {
  run_import(
      R"({"conversations": [{"from": "system", "value": "s", "weight": 0}, {"from": "human", "value": "q"}, )"
      R"({"from": "gpt", "value": "a", "weight": 1}, {"from": "user", "value": "r"}, {"from": "assistant", "value": "b"}]})"
      "\n"
      R"({"prompt": "p", "completion": "c", "messages": null})"
      "\n"
      R"({"prompt": [{"role": "user", "content": "p"}], "completion": [{"role": "assistant", "content": "d"}]})"
      "\n"
      R"({"prompt": "unused", "messages": [{"role": "user", "content": "m"}, {"role": "assistant", "content": "e"}]})");
  EXPECT_EQ(texts(), (Texts{"s|q|[a|]r|[b|]", "p|[c|]", "p|[d|]", "m|[e|]"}));
  const std::string chosen = R"({"row": {"chosen": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]}})";
  run_import(chosen, {.field = "row.chosen"});
  EXPECT_EQ(texts(), Texts{"x|[y|]"});
  EXPECT_ERROR(ErrorCode::data_source,
               "in.jsonl:1: the object has no field \"rejected\", but \"row\": choose with --field",
               run_import(chosen, {.field = "rejected"}));
  EXPECT_ERROR(ErrorCode::data_source, "message 1 has the role \"narrator\", which is not known",
               run_import(R"({"conversations": [{"from": "narrator", "value": "x"}]})"));
}

TEST_F(ChatImport, SlicesAreDisjointAndDoNotDependOnEachOther) {
  std::string many;
  for (int i = 0; i < 400; ++i) many += line(std::to_string(i), "a");
  run_import(many, {.start = 3, .end = 5});
  EXPECT_EQ(texts(), (Texts{"3|[a|]", "4|[a|]"}));
  EXPECT_EQ(open_text_file(InputFile(output)).description.source, "in.jsonl; conversations 3 to 4");
  run_import(many, {.from = 0, .to = 0.9});
  Texts most = texts();
  EXPECT_GT(most.size(), 330u);
  EXPECT_LT(most.size(), 385u);
  EXPECT_EQ(open_text_file(InputFile(output)).description.source, "in.jsonl; fraction 0:0.9 of seed 1");
  run_import(many, {.from = 0.9, .to = 1});
  Texts all = texts();
  all.insert(all.end(), most.begin(), most.end());
  EXPECT_EQ(all.size(), 400u);
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::unique(all).begin(), all.end());
  run_import(many, {.from = 0, .to = 0.9, .seed = 2});
  EXPECT_NE(texts(), most);
  run_import(many, {.from = 0, .to = 0.9, .threads = 1});
  EXPECT_EQ(texts(), most);
  run_import(many, {.start = 100, .from = 0, .to = 0.9});
  Texts part = texts();
  std::ranges::sort(part);
  std::ranges::sort(most);
  EXPECT_TRUE(std::ranges::includes(most, part)) << "the number in the file decides";
  EXPECT_ERROR(ErrorCode::data_range, "--start 400 is not a range of the 400", run_import(many, {.start = 400}));
  EXPECT_ERROR(ErrorCode::data_range, "--end 401 is not a range", run_import(many, {.end = 401}));
}

TEST_F(ChatImport, LongConversationsAreTruncatedOrDroppedAndCounted) {
  const std::string source = line("a", "bcdef") + line("long question", "b") + line("a", "b");
  ChatImportResult result = run_import(source, {.max_tokens = 5});
  EXPECT_EQ(texts(), (Texts{"a|[bcd]", "a|[b|]"}));
  EXPECT_EQ(result.n_truncated, 1);
  EXPECT_EQ(result.n_answer_cut_off, 1);
  EXPECT_EQ(result.n_too_long, 0);
  EXPECT_EQ(result.n_answer_tokens, 5);
  result = run_import(source, {.max_tokens = 5, .too_long = TooLong::drop});
  EXPECT_EQ(texts(), (Texts{"a|[b|]"}));
  EXPECT_EQ(result.n_truncated, 0);
  EXPECT_EQ(result.n_too_long, 2);
  EXPECT_ERROR(ErrorCode::data_source,
               "none of the 3 conversations has an answer that can be learnt (0 without an assistant, 0",
               run_import(source, {.max_tokens = 2}));
}

TEST_F(ChatImport, WrongInputIsNamedAndNothingIsLeft) {
  const auto with = [](const std::string& messages) { return line("a", "b") + "{\"messages\": " + messages + "}\n"; };
  refuses(with(R"([{"role": "gpt", "content": "x"}])"),
          R"(in.jsonl:2: message 1 has the role "gpt", which is not known: rename)");
  refuses(with(R"([{"role": "assistant", "content": "x", "weight": 0.5}])"), "\"weight\": 0.5: expected false or 0");
  refuses(with(R"([{"role": "user", "content": "x", "train": true}])"), "\"train\": true: expected false or 0");
  refuses(with(R"([{"role": "assistant", "content": "x", "tool_calls": {}}])"), "\"tool_calls\": expected a list");
  refuses(R"({"tools": "[]", "messages": [{"role": "user", "content": "x"}]})", "\"tools\": expected a list");
  refuses(R"({"instruction": "i", "output": "o", "history": [["a", "b"]]})", "\"history\"");
  std::string nested = std::string(100000, '[') + std::string(100000, ']'), members = "{\"0\": 0";
  for (int i = 1; i < 100000; ++i) members += fmt::format(", \"{}\": 0", i);
  for (const std::string& value : {nested, members + "}"}) refuses(R"({"tools": )" + value + "}", "nested more than");
  refuses(with("[]"), "in.jsonl:2: the conversation is empty: remove it");
  refuses(with("7"), "in.jsonl:2: \"messages\": expected a list, found a JSON number");
  refuses(with("[[]]"), "in.jsonl:2: message 1: expected {\"role\", \"content\"}, found a JSON array");
  refuses(with(R"([{"role": "user"}])"), "in.jsonl:2: message 1 has no \"content\"");
  refuses(with(R"([{"role": "user", "content": ["x"]}])"),
          "message 1: \"content\": expected a string, found a JSON array: join the texts");
  refuses(with(R"([{"role": "user", "content": "bad"}, {"role": "assistant", "content": "x"}])"),
          "in.jsonl:2: the template refuses this", ErrorCode::usage);
  refuses(line("a", "b") + "{\"messages\": [}\n", "in.jsonl:2: this line is not valid JSON (column");
  refuses(line("a", "b") + "3\n", "in.jsonl:2: expected an object");
  refuses(R"({"conversations": [], "id": 1})", "in.jsonl:1: the conversation is empty");
  refuses(
      R"({"prompt": "a", "id": 1})",
      R"(but "prompt", "id": name a list of messages with --field, or convert it to {"messages": [{"role": "user", )"
      R"("content": "..."}, {"role": "assistant", "content": "..."}]})");
  refuses(R"({"prompt": "a", "chosen": "b", "rejected": "c"})",
          "in.jsonl:1: this is a pair of a chosen and a rejected");
  refuses("{}", "but nothing");
  refuses(R"([{"instruction": "i"}])", "in.jsonl, element 0: the object has no \"output\"");
  refuses(R"([{"instruction": "", "output": ""}])", "element 0: the conversation is empty");
  refuses("[{]", "in.jsonl is not valid JSON (line 1");
  refuses("", "contains no conversations");
  refuses("[]", "contains no conversations");
  refuses(R"({"messages": [{"role": "user", "content": "x"}]})", "none of the 1 conversations has an answer",
          ErrorCode::data_source);
  refuses(R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "weight": 0}]})",
          "(0 without an assistant, 1 whose answers all have weight 0", ErrorCode::data_source);
  fs::create_directory(folder / "empty");
  EXPECT_ERROR(ErrorCode::data_source, "empty contains no files of text",
               import_chat({.source = folder / "empty", .output = output}, byte_encoder()));
  EXPECT_ERROR(ErrorCode::data_source, "there is no text",
               import_chat({.source = folder / "none", .output = output}, byte_encoder()));
}

}  // namespace
}  // namespace lockstep::data
