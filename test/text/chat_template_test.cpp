// Chat templates, compared with transformers (test/golden/make_chat_template_golden.py).
#include "text/chat_template.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/error.h"

namespace lockstep::text {
namespace {

nlohmann::json golden() {
  std::ifstream file("test/golden/chat_templates.json");
  return nlohmann::json::parse(file);
}

std::vector<ChatMessage> messages_of(const nlohmann::json& list) {
  std::vector<ChatMessage> out;
  for (const auto& message : list) out.push_back({message["role"], message["content"]});
  return out;
}

TEST(ChatTemplate, AgreesWithTransformers) {
  const nlohmann::json all = golden();
  int n = 0;
  for (const auto& c : all["cases"]) {
    const std::string name = c["template"];
    const ChatTemplate chat(all["templates"][name].get<std::string>(), name, all["variables"]);
    EXPECT_EQ(
        chat.render(messages_of(c["messages"]), c["begins_reply"].get<bool>() ? ReplyBegin::add : ReplyBegin::omit),
        c["text"].get<std::string>())
        << name << ", " << c["messages"].size() << " messages";
    ++n;
  }
  EXPECT_GT(n, 80);
}

TEST(ChatTemplate, PresetsAreThoseOfTheModels) {
  const nlohmann::json all = golden();
  const auto llama3 = ChatTemplate::preset("llama3", all["variables"]);
  const auto chatml = ChatTemplate::preset("chatml");
  ASSERT_TRUE(llama3 && chatml);
  EXPECT_EQ(ChatTemplate::preset("vicuna"), nullptr);
  for (const auto& c : all["cases"]) {
    const auto begin = c["begins_reply"].get<bool>() ? ReplyBegin::add : ReplyBegin::omit;
    const auto messages = messages_of(c["messages"]);
    if (c["template"] == "Llama 3") {
      EXPECT_EQ(llama3->render(messages, begin), c["text"]);
    }
    // With a system message, Qwen2's template does not add its default one.
    if (c["template"] == "Qwen2" && messages.front().role == "system") {
      EXPECT_EQ(chatml->render(messages, begin), c["text"]);
    }
  }
  const std::vector<ChatMessage> hello{{"user", "hello"}};
  EXPECT_EQ(chatml->render(hello, ReplyBegin::add), "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, OpensThatOfATokenizer) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("lockstep-chat-template-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  EXPECT_EQ(ChatTemplate::open(folder.string()), nullptr);
  const auto write = [&](const char* name, const std::string& text) { std::ofstream(folder / name) << text; };
  const std::vector<ChatMessage> hello{{"user", "hello"}};
  write("tokenizer_config.json", R"({"bos_token": {"content": "<b>"}, "eos_token": null,)"
                                 R"( "chat_template": "{{ bos_token }}{{ messages[0].content }}"})");
  EXPECT_EQ(ChatTemplate::open(folder.string())->render(hello, ReplyBegin::add), "<b>hello");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(ChatTemplate::open(folder.string())->render(hello, ReplyBegin::add), "d");
  EXPECT_EQ(ChatTemplate::open(folder.string(), "rag")->render(hello, ReplyBegin::add), "r");
  EXPECT_EQ(ChatTemplate::open(folder.string(), "none"), nullptr);
  write("chat_template.jinja", "file");
  EXPECT_EQ(ChatTemplate::open(folder.string())->render(hello, ReplyBegin::add), "file");
  fs::remove_all(folder);
}

ErrorCode code_of(const std::string& jinja) {
  const std::vector<ChatMessage> hello{{"user", "hello"}};
  try {
    static_cast<void>(ChatTemplate(jinja, "test").render(hello, ReplyBegin::add));
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("test"), std::string::npos) << error.what();
    return error.code();
  }
  return ErrorCode::internal;
}

TEST(ChatTemplate, NamesWhatIsWrong) {
  for (const char* damaged :
       {"{% if %}{% endif %}", "{{ messages[0] ", "{% for m in messages %}", "{# comment", "{{ 'text }}",
        "{{ 1 + 'a' }}", "{{ missing.attribute }}", "{{ missing() .x }}", "{{ 1 / 0 }}", "{{ ? }}", "{% endif %}",
        "{{ 1 1 }}", "{% set x.y = 1 %}", "{{ 'a'[::0] }}", "{{ 12345678901234567890 }}"})
    EXPECT_EQ(code_of(damaged), ErrorCode::chat_template) << damaged;
  for (const char* unknown : {"{% macro f() %}{% endmacro %}", "{{ messages | groupby('role') }}", "{{ lipsum() }}",
                              "{{ 1 is divisibleby 3 }}", "{{ 'a'.encode() }}", "{% include 'x' %}"})
    EXPECT_EQ(code_of(unknown), ErrorCode::chat_template) << unknown;
  EXPECT_EQ(code_of("{{ raise_exception('no') }}"), ErrorCode::chat_template);
  EXPECT_EQ(code_of(std::string(1000, '(')), ErrorCode::internal);  // plain text
  EXPECT_EQ(code_of("{{ " + std::string(100000, '(') + " }}"), ErrorCode::chat_template);
  EXPECT_EQ(code_of("{{ " + std::string(100000, '-') + "1 }}"), ErrorCode::chat_template);
}

}  // namespace
}  // namespace lockstep::text
