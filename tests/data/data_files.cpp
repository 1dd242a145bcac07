#include "tests/data/data_files.h"

#include <jpeglib.h>
#include <png.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace tandem::testing {

namespace fs = std::filesystem;

std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string gzip(const std::string& bytes) {
  z_stream state{};
  deflateInit2(&state, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&state, bytes.size()) + 64, '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  state.avail_in = static_cast<uInt>(bytes.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  deflate(&state, Z_FINISH);
  out.resize(state.total_out);
  deflateEnd(&state);
  return out;
}

std::string tar_entry(const std::string& name, const std::string& content, char type) {
  std::string header(512, '\0');
  const auto put = [&](size_t at, const std::string& text) {
    header.replace(at, text.size(), text);
  };
  std::array<char, 16> number{};
  put(0, name.substr(0, 100));
  put(100, "0000644");
  std::snprintf(number.data(), number.size(), "%011zo", content.size());
  put(124, number.data());
  header[156] = type;
  put(257, "ustar");
  put(263, "00");
  put(148, "        ");
  unsigned sum = 0;
  for (const char byte : header) {
    sum += static_cast<uint8_t>(byte);
  }
  std::snprintf(number.data(), number.size(), "%06o", sum);
  put(148, std::string(number.data()) + '\0');
  return header + content + std::string((512 - content.size() % 512) % 512, '\0');
}

Image test_image(int64_t channels, int64_t height, int64_t width, int seed) {
  Image image{channels, height, width, {}};
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        image.pixels.push_back(static_cast<uint8_t>(seed * 37 + c * 50 + y * 3 + x * 2));
      }
    }
  }
  return image;
}

namespace {

std::vector<uint8_t> interleaved(const Image& image) {
  std::vector<uint8_t> samples;
  const int64_t area = image.height * image.width;
  for (int64_t i = 0; i < area; ++i) {
    for (int64_t c = 0; c < image.channels; ++c) {
      samples.push_back(image.pixels[static_cast<size_t>(c * area + i)]);
    }
  }
  return samples;
}

}  // namespace

std::string png_of(const Image& image) {
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(image.width);
  header.height = static_cast<png_uint_32>(image.height);
  header.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  const std::vector<uint8_t> samples = interleaved(image);
  std::string file(1 << 20, '\0');
  png_alloc_size_t size = file.size();
  png_image_write_to_memory(&header, file.data(), &size, 0, samples.data(), 0, nullptr);
  return file.substr(0, size);
}

std::string jpeg_of(const Image& image, int scans) {
  jpeg_compress_struct state{};
  jpeg_error_mgr errors{};
  state.err = jpeg_std_error(&errors);
  jpeg_create_compress(&state);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&state, &bytes, &size);
  state.image_width = static_cast<JDIMENSION>(image.width);
  state.image_height = static_cast<JDIMENSION>(image.height);
  state.input_components = static_cast<int>(image.channels);
  state.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&state);
  jpeg_set_quality(&state, 95, TRUE);
  // Two scans for each of the 64 coefficients: the lowest bit comes in the second one.
  std::vector<jpeg_scan_info> script;
  for (int scan = 0; scans > 1 && scan < scans; ++scan) {
    const int coefficient = scan / 2, is_second = scan % 2;
    script.push_back({1, {0}, coefficient, coefficient, is_second, 1 - is_second});
  }
  if (!script.empty()) {
    state.scan_info = script.data();
    state.num_scans = static_cast<int>(script.size());
  }
  jpeg_start_compress(&state, TRUE);
  std::vector<uint8_t> samples = interleaved(image);
  while (state.next_scanline < state.image_height) {
    JSAMPROW row = samples.data() + state.next_scanline * image.width * image.channels;
    jpeg_write_scanlines(&state, &row, 1);
  }
  jpeg_finish_compress(&state);
  jpeg_destroy_compress(&state);
  std::string file(reinterpret_cast<char*>(bytes), size);
  std::free(bytes);
  return file;
}

std::string idx_of(const std::vector<uint32_t>& dims, const std::string& bytes) {
  std::string file{0, 0, 8, static_cast<char>(dims.size())};
  for (const uint32_t dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      file.push_back(static_cast<char>(dim >> shift));
    }
  }
  return file + bytes;
}

void expect_error(ExitCode code, const std::vector<std::string>& parts,
                  const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "no error where one with '" << parts[0] << "' was expected";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos)
          << "expected '" << part << "' in: " << message;
    }
  }
}

std::string run_with_file_limit(int64_t bytes, const std::function<int()>& body) {
  std::array<int, 2> channel{};
  if (::pipe(channel.data()) != 0) {
    throw std::runtime_error("pipe");
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(channel[1], 2);
    ::close(channel[0]);
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{static_cast<rlim_t>(bytes), RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int code = 99;
    try {
      code = body();
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      code = static_cast<int>(error.code());
    }
    // Through exit(), so that the libraries' own clean-up runs too.
    std::exit(code);
  }
  ::close(channel[1]);
  std::string output;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = ::read(channel[0], buffer.data(), buffer.size())) > 0;) {
    output.append(buffer.data(), static_cast<size_t>(got));
  }
  ::close(channel[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  const std::string end =
      WIFEXITED(status) ? str("exit ", WEXITSTATUS(status)) : str("signal ", WTERMSIG(status));
  return output + end;
}

}  // namespace tandem::testing
