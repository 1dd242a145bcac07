#include "src/prepare/images/image.h"

#include <jpeglib.h>
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

namespace tandem {
namespace {

// Larger images are refused before they are decoded, so that a small file cannot request all
// memory. A progressive JPEG takes 6 bytes a pixel, 200 MB here. It decodes the whole image once
// for each of its scans: cameras and web sites make about 10 of them.
constexpr int64_t kLargestArea = int64_t{1} << 25;
constexpr const char* kTooLarge = "more than 2^25 pixels";
constexpr int kMostScans = 64;

// Reorders [H, W, C] samples to the [C, H, W] of an image.
void planes_from_interleaved(const uint8_t* samples, Image* image) {
  const int64_t area = image->height * image->width;
  image->pixels.resize(static_cast<size_t>(image->channels * area));
  for (int64_t channel = 0; channel < image->channels; ++channel) {
    uint8_t* plane = image->pixels.data() + channel * area;
    for (int64_t i = 0; i < area; ++i) {
      plane[i] = samples[i * image->channels + channel];
    }
  }
}

// Both libraries report errors by longjmp, which runs no destructors. So functions that call setjmp
// hold no object with a destructor; their callers own the buffers.
struct JpegErrors {
  jpeg_error_mgr base;
  std::jmp_buf leave;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave_jpeg(j_common_ptr state) {
  auto* errors = reinterpret_cast<JpegErrors*>(state->err);
  state->err->format_message(state, errors->message);
  std::longjmp(errors->leave, 1);
}

// A warning (level -1) means that data are missing or damaged, and that the decoder invented some.
void on_jpeg_message(j_common_ptr state, int level) {
  if (level < 0) {
    leave_jpeg(state);
  }
}

void limit_scans(j_common_ptr state) {
  if (reinterpret_cast<j_decompress_ptr>(state)->input_scan_number > kMostScans) {
    auto* errors = reinterpret_cast<JpegErrors*>(state->err);
    std::snprintf(errors->message, sizeof(errors->message), "more than %d scans", kMostScans);
    std::longjmp(errors->leave, 1);
  }
}

bool run_jpeg(jpeg_decompress_struct* state, JpegErrors* errors, std::string_view file,
              Image* image, std::vector<uint8_t>* samples) {
  if (setjmp(errors->leave) != 0) {
    return false;
  }
  jpeg_create_decompress(state);
  jpeg_mem_src(state, reinterpret_cast<const uint8_t*>(file.data()), file.size());
  jpeg_read_header(state, TRUE);
  image->height = state->image_height;
  image->width = state->image_width;
  if (image->height * image->width > kLargestArea) {
    std::snprintf(errors->message, sizeof(errors->message), "%s", kTooLarge);
    return false;
  }
  jpeg_progress_mgr progress{};
  progress.progress_monitor = limit_scans;
  state->progress = &progress;
  const bool is_grey = state->jpeg_color_space == JCS_GRAYSCALE;
  state->out_color_space = is_grey ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_start_decompress(state);
  image->channels = is_grey ? 1 : 3;
  samples->resize(static_cast<size_t>(image->channels * image->height * image->width));
  while (state->output_scanline < state->output_height) {
    JSAMPROW row = samples->data() + state->output_scanline * image->width * image->channels;
    jpeg_read_scanlines(state, &row, 1);
  }
  jpeg_finish_decompress(state);
  return true;
}

std::string decode_jpeg(std::string_view file, Image* image) {
  jpeg_decompress_struct state{};
  JpegErrors errors{};
  std::vector<uint8_t> samples;
  state.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = leave_jpeg;
  errors.base.emit_message = on_jpeg_message;
  const bool ok = run_jpeg(&state, &errors, file, image, &samples);
  const bool printing = state.jpeg_color_space == JCS_CMYK || state.jpeg_color_space == JCS_YCCK;
  jpeg_destroy_decompress(&state);
  if (ok) {
    planes_from_interleaved(samples.data(), image);
    return "";
  }
  return printing ? "a JPEG with the printing colours CMYK; convert it to RGB"
                  : std::string("unusable JPEG: ") + errors.message;
}

struct PngInput {
  std::string_view file;
  size_t at;
  std::jmp_buf leave;
  char message[128];
};

[[noreturn]] void leave_png(png_structp state, png_const_charp message) {
  auto* input = static_cast<PngInput*>(png_get_error_ptr(state));
  std::snprintf(input->message, sizeof(input->message), "%s", message);
  std::longjmp(input->leave, 1);
}

void ignore_png_warning(png_structp, png_const_charp) {}

void read_png(png_structp state, png_bytep out, png_size_t count) {
  auto* input = static_cast<PngInput*>(png_get_io_ptr(state));
  if (count > input->file.size() - input->at) {
    png_error(state, "the file is cut short");
  }
  std::memcpy(out, input->file.data() + input->at, count);
  input->at += count;
}

bool run_png(png_structp state, png_infop info, PngInput* input, Image* image,
             std::vector<uint8_t>* samples, std::vector<png_bytep>* rows) {
  if (setjmp(input->leave) != 0) {
    return false;
  }
  png_set_read_fn(state, input, read_png);
  png_set_crc_action(state, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
  // Texts and colour profiles are skipped: a small file may say that they have gigabytes.
  png_set_keep_unknown_chunks(state, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(state, info);
  png_set_expand(state);
  png_set_strip_16(state);
  png_set_strip_alpha(state);
  png_set_interlace_handling(state);
  png_read_update_info(state, info);
  image->channels = png_get_channels(state, info);
  image->height = png_get_image_height(state, info);
  image->width = png_get_image_width(state, info);
  if (image->height * image->width > kLargestArea) {
    png_error(state, kTooLarge);
  }
  const size_t stride = png_get_rowbytes(state, info);
  samples->resize(stride * static_cast<size_t>(image->height));
  rows->resize(static_cast<size_t>(image->height));
  for (size_t row = 0; row < rows->size(); ++row) {
    (*rows)[row] = samples->data() + row * stride;
  }
  png_read_image(state, rows->data());
  png_read_end(state, nullptr);
  return true;
}

std::string decode_png(std::string_view file, Image* image) {
  PngInput input{file, 0, {}, {}};
  std::vector<uint8_t> samples;
  std::vector<png_bytep> rows;
  png_structp state =
      png_create_read_struct(PNG_LIBPNG_VER_STRING, &input, leave_png, ignore_png_warning);
  png_infop info = png_create_info_struct(state);
  const bool ok = run_png(state, info, &input, image, &samples, &rows);
  png_destroy_read_struct(&state, &info, nullptr);
  if (ok) {
    planes_from_interleaved(samples.data(), image);
    return "";
  }
  return std::string("unusable PNG: ") + input.message;
}

}  // namespace

std::string decode_image(std::string_view file, Image* image) {
  if (file.starts_with("\xFF\xD8\xFF")) {
    return decode_jpeg(file, image);
  }
  if (file.starts_with("\x89PNG\r\n\x1A\n")) {
    return decode_png(file, image);
  }
  return file.empty() ? "empty file" : "neither JPEG nor PNG";
}

}  // namespace tandem
