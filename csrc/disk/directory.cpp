#include "disk/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <system_error>

namespace kvarter {
namespace disk {
namespace {

int read_pid(int file) {
  char text[32] = {};
  return pread(file, text, sizeof text - 1, 0) > 0 ? std::atoi(text) : 0;
}

}  // namespace

Directory::Directory(const std::string& path) : path_(path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    throw std::system_error(errno, std::generic_category(), "making the directory " + path);
  directory_ = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_ < 0)
    throw std::system_error(errno, std::generic_category(), "opening the directory " + path);
}

Directory::~Directory() {
  if (lock_ >= 0) ::close(lock_);
  ::close(directory_);
}

void Directory::add_reason(const std::string& reason) {
  if (reason_.find(reason) == std::string::npos) reason_ += (reason_.empty() ? "" : "; ") + reason;
}

std::vector<std::string> Directory::list() {
  std::vector<std::string> names;
  const int fd = openat(directory_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* dir = fd < 0 ? nullptr : fdopendir(fd);
  if (!dir) throw std::system_error(errno, std::generic_category(), "listing the directory " + path_);
  while (const dirent* entry = readdir(dir)) {
    const std::string file = entry->d_name;
    if (file != "." && file != ".." && file != "lost+found") names.push_back(file);
  }
  closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

void Directory::lock() {
  lock_ = openat(directory_, "LOCK", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) throw std::system_error(errno, std::generic_category(), "opening " + path_ + "/LOCK");
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0)
    throw std::runtime_error("the disk tier's directory " + path_ + " is in use by process " +
                             std::to_string(read_pid(lock_)) +
                             "; one process per directory: stop that one, or choose another path");
  if (fchmod(directory_, 0700) != 0)
    throw std::system_error(errno, std::generic_category(), "making " + path_ + " the owner's alone");
  const std::string pid = std::to_string(getpid()) + "\n";
  if (ftruncate(lock_, 0) != 0 || pwrite(lock_, pid.data(), pid.size(), 0) < 0)
    add_reason("the lock file has no pid, for want of space");
}

int Directory::open_direct(const std::string& name, int flags) {
  int fd = openat(directory_, name.c_str(), flags | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);
  if (fd < 0 && errno == EINVAL) {
    if (flags & O_CREAT) unlinkat(directory_, name.c_str(), 0);
    fd = openat(directory_, name.c_str(), flags | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0) add_reason("this file system has no O_DIRECT");
  }
  return fd < 0 ? -errno : fd;
}

int Directory::open(const std::string& name) { return open_direct(name, O_NOFOLLOW); }

int Directory::create(const std::string& name, std::uint64_t bytes, bool sparse) {
  unlinkat(directory_, name.c_str(), 0);  // what a crash left
  const int fd = open_direct(name, O_CREAT | O_EXCL);
  if (fd < 0) return fd;
  const auto size = static_cast<off_t>(bytes);
  if ((sparse ? ftruncate(fd, size) : fallocate(fd, 0, 0, size)) == 0) return fd;
  const int error = errno;
  ::close(fd);
  unlinkat(directory_, name.c_str(), 0);
  return -error;
}

void Directory::close(int file) { ::close(file); }

std::int64_t Directory::size(int file) {
  struct stat status;
  return fstat(file, &status) == 0 ? static_cast<std::int64_t>(status.st_size) : -errno;
}

int Directory::rename(const std::string& from, const std::string& to) {
  return renameat(directory_, from.c_str(), directory_, to.c_str()) == 0 ? 0 : -errno;
}

int Directory::remove(const std::string& name) {
  return unlinkat(directory_, name.c_str(), 0) == 0 ? 0 : -errno;
}

int Directory::sync_directory() { return fsync(directory_) == 0 ? 0 : -errno; }

std::uint64_t Directory::free_bytes() {
  struct statvfs status;
  if (fstatvfs(directory_, &status) != 0) return 0;
  return std::uint64_t{status.f_bavail} * status.f_frsize;
}

int lock_holder(const std::string& path) {
  const int fd = ::open((path + "/LOCK").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const bool held = flock(fd, LOCK_SH | LOCK_NB) != 0;
  const int pid = held ? read_pid(fd) : 0;
  ::close(fd);
  return pid;
}

}  // namespace disk

std::unique_ptr<Device> make_device(const std::string& path, const std::string& kind, unsigned depth) {
  depth = std::clamp(depth, 1u, 1024u);
  if (kind == "threads") return disk::make_threads_device(path, depth, "");
  if (kind == "io_uring") return disk::make_uring_device(path, depth);
  if (kind == "noop") return make_noop_device();
  if (kind != "auto")
    throw std::invalid_argument("the disk device is '" + kind +
                                "', expected 'auto', 'io_uring', 'threads' or 'noop'");
  try {
    return disk::make_uring_device(path, depth);
  } catch (const std::runtime_error& refused) {
    return disk::make_threads_device(path, depth, refused.what());
  }
}

}  // namespace kvarter
