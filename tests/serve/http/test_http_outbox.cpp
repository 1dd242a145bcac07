// Answers between two threads: here one thread is both.
#include <gtest/gtest.h>

#include <string>

#include "src/core/error.h"
#include "src/serve/http/http_outbox.h"

namespace tandem {
namespace {

struct Box {
  int wakes = 0;
  HttpOutbox outbox{10, [this] { ++wakes; }};
};

TEST(HttpOutbox, WakesOnceUntilItIsEmptied) {
  Box box;
  box.outbox.begin(200, "text/plain", {});
  box.outbox.write("a");
  box.outbox.write("b");
  EXPECT_EQ(box.wakes, 1);
  HttpOutbox::Batch batch = box.outbox.take();
  ASSERT_TRUE(batch.head);
  EXPECT_EQ(batch.head->status, 200);
  EXPECT_EQ(batch.bytes, "ab");
  EXPECT_FALSE(batch.is_complete || batch.is_abandoned);
  box.outbox.end();
  EXPECT_EQ(box.wakes, 2);
  batch = box.outbox.take();
  EXPECT_FALSE(batch.head);
  EXPECT_EQ(batch.bytes, "");
  EXPECT_TRUE(batch.is_complete);
  box.outbox.abandon();
  EXPECT_FALSE(box.outbox.take().is_abandoned) << "it was complete";
  EXPECT_EQ(box.wakes, 2);
}

TEST(HttpOutbox, AClientMayLeaveSomeUnread) {
  Box box;
  box.outbox.begin(200, "", {});
  box.outbox.write(std::string(10, 'a'));
  box.outbox.write("b");  // 10 bytes waited, which are allowed
  EXPECT_EQ(box.outbox.take().bytes.size(), 11u);
  box.outbox.count_read(1);
  box.outbox.write("c");
  EXPECT_EQ(box.outbox.take().bytes, "c");
  EXPECT_FALSE(box.outbox.is_gone());
  EXPECT_EQ(box.wakes, 2);
  box.outbox.write(std::string(10, 'd'));
  EXPECT_FALSE(box.outbox.is_gone());
  box.outbox.take();
  box.outbox.write("e");  // 21 bytes waited: more than 10 and the largest piece
  EXPECT_TRUE(box.outbox.is_gone());
  EXPECT_EQ(box.wakes, 4);
  EXPECT_EQ(box.outbox.take().bytes, "");
}

TEST(HttpOutbox, WakesWhoeverIsBusyWhenTooMuchIsUnread) {
  Box box;
  box.outbox.begin(200, "", {});
  box.outbox.write(std::string(6, 'a'));
  box.outbox.write(std::string(6, 'a'));
  box.outbox.write(std::string(6, 'a'));
  EXPECT_EQ(box.wakes, 1);
  box.outbox.write("b");
  EXPECT_TRUE(box.outbox.is_gone());
  EXPECT_EQ(box.wakes, 2) << "though nothing was taken";
  box.outbox.write("c");
  EXPECT_EQ(box.wakes, 2);
}

TEST(HttpOutbox, AWholeAnswerMayBeLong) {
  Box box;
  box.outbox.send(200, "", std::string(1000, 'a'), {});
  const HttpOutbox::Batch batch = box.outbox.take();
  EXPECT_EQ(batch.bytes.size(), 1000u);
  EXPECT_TRUE(batch.is_complete);
  EXPECT_FALSE(box.outbox.is_gone());
}

TEST(HttpOutbox, TakesNothingWhenNobodyWaits) {
  Box box;
  box.outbox.close();
  EXPECT_TRUE(box.outbox.is_gone());
  box.outbox.send(200, "", "a", {});
  box.outbox.begin(200, "", {});
  box.outbox.abandon();
  EXPECT_EQ(box.wakes, 0);
  EXPECT_FALSE(box.outbox.take().head);
}

TEST(HttpOutbox, RefusesHeadersOfSeveralLines) {
  Box box;
  EXPECT_THROW(box.outbox.send(200, "a\nb", "", {}), Error);
  EXPECT_THROW(box.outbox.begin(200, "", {{"A\r\nB", "c"}}), Error);
  EXPECT_THROW(box.outbox.begin(200, "", {{"A", std::string("\0", 1)}}), Error);
  EXPECT_THROW(box.outbox.begin(200, "", {{"A", "\x7f"}}), Error);
  EXPECT_THROW(box.outbox.send(100, "", "", {}), Error);
  EXPECT_THROW(box.outbox.send(600, "", "", {}), Error);
  EXPECT_EQ(box.wakes, 0);
  box.outbox.send(599, "text/\xc3\xa4", "", {{"A", "b c"}});
  EXPECT_EQ(box.wakes, 1);
}

TEST(HttpOutbox, HeadsSayWhereTheBodyEnds) {
  const auto has = [](const std::string& text, const std::string& line) {
    return text.find("\r\n" + line + "\r\n") != std::string::npos;
  };
  const HttpHead head{200, "a/b", {{"C", "d"}}};
  const std::string length = head.text(5, true, true), chunks = head.text({}, true, false);
  EXPECT_TRUE(has(length, "Content-Length: 5") && has(length, "Content-Type: a/b"));
  EXPECT_TRUE(has(length, "C: d") && length.ends_with("\r\n\r\n"));
  EXPECT_EQ(length.find("Connection"), std::string::npos);
  EXPECT_TRUE(has(chunks, "Transfer-Encoding: chunked") && has(chunks, "Connection: close"));
  EXPECT_FALSE(has(head.text({}, false, false), "Transfer-Encoding: chunked"));
  EXPECT_TRUE(has(head.text(5, false, true), "Connection: keep-alive"));
  const HttpHead none{304, "", {}};
  EXPECT_EQ(none.text(5, true, true).find("Content-"), std::string::npos);
  const std::string large = HttpHead{431, "", {}}.text(0, true, true);
  EXPECT_TRUE(large.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"));
  EXPECT_TRUE((HttpHead{599, "", {}}.text(0, true, true).starts_with("HTTP/1.1 599 ")));
}

}  // namespace
}  // namespace tandem
