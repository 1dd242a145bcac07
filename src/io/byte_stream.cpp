#include "src/io/byte_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "src/core/error.h"

namespace tandem {
namespace {

constexpr int kGzipOnly = 16 + MAX_WBITS;  // zlib: expect a gzip header and check its CRC
constexpr int64_t kBlock = int64_t{1} << 18;

bool has_gzip_magic(const char* bytes, int64_t count) {
  return count >= 2 && static_cast<uint8_t>(bytes[0]) == 0x1F &&
         static_cast<uint8_t>(bytes[1]) == 0x8B;
}

// The state of zlib, freed at the end of its life.
struct Gzip {
  z_stream state{};
  ~Gzip() { inflateEnd(&state); }
};

}  // namespace

struct ByteStream::Inflater : Gzip {
  std::vector<char> input = std::vector<char>(kBlock);
  bool member_ended = false;
};

ByteStream::ByteStream(const std::string& path, Unpack unpack)
    : path_(path), descriptor_(path, O_RDONLY) {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) {
    fail_data(path, ": cannot open: ", std::strerror(errno));
  }
  char magic[2] = {};
  const bool readable = S_ISREG(status.st_mode);
  if (readable && unpack == Unpack::kAuto &&
      has_gzip_magic(magic, ::pread(descriptor_, magic, 2, 0))) {
    inflater_ = std::make_unique<Inflater>();
  }
  if (!readable || (inflater_ && inflateInit2(&inflater_->state, kGzipOnly) != Z_OK)) {
    fail_data(path, ": not a file that can be read");
  }
}

ByteStream::~ByteStream() = default;

int64_t ByteStream::read(char* out, int64_t count) {
  int64_t done = 0;
  while (done < count) {
    const int64_t got =
        inflater_ ? inflate_some(out + done, count - done) : read_file(out + done, count - done);
    if (got == 0) {
      break;
    }
    done += got;
    position_ += got;
  }
  return done;
}

int64_t ByteStream::read_file(char* out, int64_t count) {
  for (;;) {
    const ssize_t got = ::read(descriptor_, out, static_cast<size_t>(count));
    if (got >= 0) {
      return got;
    }
    if (errno != EINTR) {
      fail_data(path_, ": cannot read: ", std::strerror(errno));
    }
  }
}

// A gzip file may hold several members one after the other; anything else after one is damage.
bool ByteStream::begin_next_member() {
  z_stream& state = inflater_->state;
  if (state.avail_in < 2) {
    std::memmove(inflater_->input.data(), state.next_in, state.avail_in);
    state.next_in = reinterpret_cast<Bytef*>(inflater_->input.data());
    state.avail_in += static_cast<uInt>(
        read_file(inflater_->input.data() + state.avail_in, kBlock - state.avail_in));
  }
  if (state.avail_in == 0) {
    return false;
  }
  if (!has_gzip_magic(reinterpret_cast<const char*>(state.next_in), state.avail_in)) {
    fail_data(path_, ": other bytes follow the end of the gzip data (after ", position_,
              " uncompressed bytes)");
  }
  inflateReset(&state);
  inflater_->member_ended = false;
  return true;
}

int64_t ByteStream::inflate_some(char* out, int64_t count) {
  z_stream& state = inflater_->state;
  const int64_t wanted = std::min<int64_t>(count, int64_t{1} << 30);
  state.next_out = reinterpret_cast<Bytef*>(out);
  state.avail_out = static_cast<uInt>(wanted);
  while (state.avail_out > 0) {
    if (inflater_->member_ended && !begin_next_member()) {
      break;
    }
    if (state.avail_in == 0) {
      state.next_in = reinterpret_cast<Bytef*>(inflater_->input.data());
      state.avail_in = static_cast<uInt>(read_file(inflater_->input.data(), kBlock));
      if (state.avail_in == 0) {
        fail_data(path_, ": cut short: the gzip data end inside the file, after ",
                  position_ + wanted - state.avail_out, " uncompressed bytes");
      }
    }
    const int status = ::inflate(&state, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END) {
      fail_data(path_, ": damaged gzip data after ", position_ + wanted - state.avail_out,
                " uncompressed bytes (", state.msg == nullptr ? "no details" : state.msg, ")");
    }
    inflater_->member_ended = status == Z_STREAM_END;
  }
  return wanted - state.avail_out;
}

std::string read_whole_file(const std::string& path, ByteStream::Unpack unpack, RecordLimit limit) {
  ByteStream stream(path, unpack);
  std::string content;
  for (;;) {
    const size_t before = content.size();
    content.resize(std::max<size_t>(before * 2, kBlock));
    const int64_t room = static_cast<int64_t>(content.size() - before);
    const int64_t got = stream.read(content.data() + before, room);
    limit.check(static_cast<int64_t>(before) + got, [&] { return path; });
    if (got < room) {
      content.resize(before + static_cast<size_t>(got));
      return content;
    }
  }
}

std::string gunzip(const std::string& bytes, const std::string& name, RecordLimit limit) {
  if (!has_gzip_magic(bytes.data(), std::ssize(bytes))) {
    return bytes;
  }
  if (bytes.size() > std::numeric_limits<uInt>::max()) {
    fail_data(name, ": more than 4 GiB of gzip data; unpack it first");
  }
  Gzip gzip;
  z_stream& state = gzip.state;
  require(inflateInit2(&state, kGzipOnly) == Z_OK, "zlib");
  std::string content;
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  state.avail_in = static_cast<uInt>(bytes.size());
  int status = Z_OK;
  while (status == Z_OK) {
    const size_t before = content.size();
    content.resize(before + kBlock);
    state.next_out = reinterpret_cast<Bytef*>(content.data() + before);
    state.avail_out = static_cast<uInt>(content.size() - before);
    status = ::inflate(&state, Z_NO_FLUSH);
    content.resize(content.size() - state.avail_out);
    limit.check(std::ssize(content), [&] { return name; });
  }
  if (status != Z_STREAM_END || state.avail_in > 0) {
    fail_data(name, status != Z_STREAM_END ? ": gzip data damaged or cut short"
                                           : ": other bytes follow the gzip data");
  }
  return content;
}

std::string gzip(const std::string& bytes) {
  require(bytes.size() <= std::numeric_limits<uInt>::max(), "gzip: more than 4 GiB");
  z_stream state{};
  require(deflateInit2(&state, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipOnly, 8,
                       Z_DEFAULT_STRATEGY) == Z_OK,
          "zlib");
  std::string packed(deflateBound(&state, bytes.size()), '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  state.avail_in = static_cast<uInt>(bytes.size());
  state.next_out = reinterpret_cast<Bytef*>(packed.data());
  state.avail_out = static_cast<uInt>(packed.size());
  const int status = deflate(&state, Z_FINISH);
  packed.resize(state.total_out);
  deflateEnd(&state);
  require(status == Z_STREAM_END, "zlib");
  return packed;
}

}  // namespace tandem
