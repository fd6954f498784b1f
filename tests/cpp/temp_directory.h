#pragma once
// A directory of a test's own, where the machine keeps temporary files (TMPDIR); gone with the object.
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace kvarter {

class TempDirectory {
 public:
  TempDirectory() : path_((std::filesystem::temp_directory_path() / "kvarter-test-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no temporary directory at " + path_);
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kvarter
