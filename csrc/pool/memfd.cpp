#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "kvarter/pool.h"

namespace kvarter {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void fail(const char* what, std::uint64_t bytes) {
  throw std::system_error(errno, std::generic_category(),
                          std::string(what) + " of " + std::to_string(bytes) + " bytes of shared memory");
}

}  // namespace

std::byte* reserve_addresses(std::uint64_t bytes) {
  // mmap gives page alignment only: reserve 2 MiB more, and give back what lies around the aligned part.
  void* hole =
      mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (hole == MAP_FAILED) fail("reserving addresses", bytes);
  const auto start = reinterpret_cast<std::uintptr_t>(hole), aligned = round_up(start, kHugePage);
  if (aligned > start) munmap(hole, aligned - start);
  if (aligned < start + kHugePage)
    munmap(reinterpret_cast<void*>(aligned + bytes), start + kHugePage - aligned);
  return reinterpret_cast<std::byte*>(aligned);
}

void map_shared_at(std::byte* at, int fd, std::uint64_t bytes, bool writable) {
  if (mmap(at, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) ==
          MAP_FAILED ||
      madvise(at, bytes, MADV_DONTFORK) || madvise(at, bytes, MADV_DONTDUMP))
    fail("mapping", bytes);
}

std::byte* map_shared(int fd, std::uint64_t bytes, bool writable) {
  bytes = round_up(bytes, static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
  std::byte* data = reserve_addresses(bytes);
  try {
    map_shared_at(data, fd, bytes, writable);
  } catch (...) {
    munmap(data, bytes);
    throw;
  }
  return data;
}

Memfd::Memfd(const std::string& name, std::uint64_t bytes, bool hugetlb)
    : bytes_(round_up(bytes, hugetlb ? kHugePage : kGranule)) {
  fd_ = memfd_create(name.c_str(),
                     MFD_CLOEXEC | MFD_ALLOW_SEALING | (hugetlb ? MFD_HUGETLB | MFD_HUGE_2MB : 0u));
  if (fd_ < 0) fail("memfd_create", bytes_);
  if (fchmod(fd_, 0600) || ftruncate(fd_, static_cast<off_t>(bytes_)) || fcntl(fd_, F_ADD_SEALS, kSeals)) {
    int error = errno;
    close(fd_);
    errno = error;
    fail("sizing and sealing", bytes_);
  }
  try {
    data_ = map_shared(fd_, bytes_, true);
  } catch (...) {
    close(fd_);
    throw;
  }
}

Memfd Memfd::adopt(int fd) {
  struct stat status{};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &status) || (seals & kSeals) != kSeals || seals < 0 || status.st_size <= 0 ||
      static_cast<std::uint64_t>(status.st_size) % kGranule)
    throw std::invalid_argument("descriptor " + std::to_string(fd) + " is no memory file of a pool: seals " +
                                std::to_string(seals) + ", expected " + std::to_string(kSeals) + "; " +
                                std::to_string(status.st_size) + " bytes, expected granules of " +
                                std::to_string(kGranule));
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  return {fd, bytes, map_shared(fd, bytes, true)};
}

Memfd::Memfd(Memfd&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}

Memfd::~Memfd() {
  if (data_) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace kvarter
