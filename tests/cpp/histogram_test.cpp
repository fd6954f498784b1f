#include "kvarter/histogram.h"

#include <doctest/doctest.h>

#include <numeric>

using kvarter::Histogram;

TEST_CASE("a histogram's bucket b has what took less than 2^b nanoseconds and no less than half") {
  Histogram histogram;
  for (const std::uint64_t ns : {0, 1, 2, 3, 4, 1023, 1024}) histogram.record(ns);
  const Histogram::Counts counts = histogram.read();
  CHECK(counts.buckets[0] == 1);
  CHECK(counts.buckets[1] == 1);
  CHECK(counts.buckets[2] == 2);
  CHECK(counts.buckets[3] == 1);
  CHECK(counts.buckets[10] == 1);
  CHECK(counts.buckets[11] == 1);
  CHECK(counts.nanoseconds == 0 + 1 + 2 + 3 + 4 + 1023 + 1024);
}

TEST_CASE("a histogram's last bucket has all that took longer") {
  Histogram histogram;
  histogram.record(~std::uint64_t{0});
  histogram.record(std::uint64_t{1} << 50);
  const auto buckets = histogram.read().buckets;
  CHECK(buckets[Histogram::kBuckets - 1] == 2);
  CHECK(std::accumulate(buckets.begin(), buckets.end(), std::uint64_t{0}) == 2);
}
