// Chat templates, compared with transformers (test/golden/make_chat_template_golden.py), and their limits.
//
// timeout: 300
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
  for (const char* unmarked :
       {"{% generation %}", "{% endgeneration %}", "{% set x %}{% generation %}x{% endgeneration %}{% endset %}",
        "{% generation %}{% generation %}x{% endgeneration %}{% endgeneration %}"})
    EXPECT_EQ(code_of(unmarked), ErrorCode::chat_template) << unmarked;
  EXPECT_EQ(code_of(std::string(1000, '(')), ErrorCode::internal);  // plain text
  EXPECT_EQ(code_of("{{ " + std::string(100000, '(') + " }}"), ErrorCode::chat_template);
  EXPECT_EQ(code_of("{{ " + std::string(100000, '-') + "1 }}"), ErrorCode::chat_template);
}

std::string times(int n, const std::string& text) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

TEST(ChatTemplate, HasLimits) {
  const std::string loops = "{% for i in range(100000) %}{% for j in range(100000) %}";
  for (const std::string& endless : std::initializer_list<std::string>{
           "{% set x = 'x' %}" + times(60, "{% set x = x + x %}"),
           "{% set x = 'x' %}" + times(60, "{% set x = x ~ x %}"),
           "{% set x = ['x'] %}" + times(60, "{% set x = [x, x] %}"),
           "{% set x = ['x'] %}" + times(60, "{% set x = x + x %}"),
           "{% set x = 'x' %}" + times(60, "{% set x %}{{ x }}{{ x }}{% endset %}"),
           "{% set x = 'x' %}" + times(60, "{% set x = x | replace('x', 'xx') %}"),
           "{% set x = 'x' %}" + times(60, "{% set x = [x, x] | join %}"),
           "{% set x = 'x' %}" + times(20, "{% set x = x + x %}") + "{{ x.replace('x', x) }}",
           "{% set x = 'x' %}" + times(20, "{% set x = x + x %}") + "{{ range(1000000) | join(x) }}",
           "{{ range(1000000) | tojson(indent=100000000) }}",
           "{% set n = namespace(x=1) %}{% for i in range(1000) %}{% set n.x = [n.x] %}{% endfor %}",
           "{% set x = 'x' * 10 if false else 'x' %}" + times(24, "{% set x = x + x %}") +
               "{% for c in x %}{% endfor %}",
           loops + "{{ i * j }}" + "{% endfor %}{% endfor %}",
           loops + "{% endfor %}{% endfor %}",
           "{% for i in range(100000) %}{{ messages | length }}{% for j in range(1000) if j < 0 %}{% endfor %}{% "
           "endfor %}",
           "{% for i in range(1000000) %}" + std::string(1000, 'x') + "{% endfor %}",
           "{{ 1" + times(100000, " + 1") + " }}",
           "{{ messages" + times(100000, "[0]") + " }}",
           "{{ messages" + times(100000, " | length") + " }}",
           "{% if 1 %}" + times(100000, "{% elif 1 %}") + "{% endif %}",
       })
    EXPECT_EQ(code_of(endless), ErrorCode::chat_template) << endless.substr(0, 200);
  // What templates and conversations need is within them.
  EXPECT_EQ(code_of("{{ 'x'" + times(900, " + 'x'") + " }}"), ErrorCode::internal);
  const ChatTemplate chat(
      "{% for m in messages %}{{ m.role ~ (m.content | trim | upper) ~ messages[0].content ~ loop.index }}{% endfor %}",
      "test");
  const std::vector<ChatMessage> many(20000, {"user", "Hello, how are you today?"});
  EXPECT_GT(chat.render(many, ReplyBegin::omit).size(), 1000000u);
  const std::vector<ChatMessage> long_one{{"user", std::string(10 << 20, 'x')}};
  EXPECT_GT(chat.render(long_one, ReplyBegin::omit).size(), std::size_t{20} << 20);
}

TEST(ChatTemplate, ConvertsCasesAsPython) {
  const auto rendered = [](const std::string& jinja) {
    return ChatTemplate("{{ " + jinja + " }}", "test").render(std::vector<ChatMessage>{{"user", ""}}, ReplyBegin::omit);
  };
  EXPECT_EQ(rendered("'naïve élan, it\\'s 3rd-RATE'.title()"), "Naïve Élan, It'S 3Rd-Rate");
  EXPECT_EQ(rendered("'naïve élan, it\\'s 3rd-RATE (ǆ)' | title"), "Naïve Élan, It's 3rd-Rate (Ǆ)");
  EXPECT_EQ(rendered("'ǆ ÉCOLE'.capitalize() ~ ('éCOLE' | capitalize)"), "ǅ écoleÉcole");
  EXPECT_EQ(rendered("'naïve ТЕСТ'.upper() ~ ('NAÏVE тест' | lower)"), "NAÏVE ТЕСТnaïve тест");
}

}  // namespace
}  // namespace lockstep::text
