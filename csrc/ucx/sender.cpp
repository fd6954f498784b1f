#include "ucx/sender.h"

#include <algorithm>
#include <utility>

namespace kvarter::ucx {

struct Said {
  Header header;
  std::vector<std::byte> data;
};

struct Lane {
  Sender& sender;
  PeerId peer;
  std::uint64_t token;
  Transmit& transmit;
  Queued queued;
  std::deque<Said> said{};
  std::list<Job> jobs{};  // in order; those before `next` are posted whole
  std::list<Job>::iterator next = jobs.end();
  std::size_t under_way = 0;  // messages
  std::int64_t credit = 0;    // bytes that it may still send in this turn
  bool in_turn = false, lost = false;

  bool has_work() const { return !said.empty() || next != jobs.end(); }
};

void Operation::done(bool ok) { lane->sender.done(*this, ok); }

Sender::Sender(std::size_t segment, std::size_t window, Events& events, Counters& counters)
    : segment_(segment), window_(window), events_(events), counters_(counters) {}
Sender::~Sender() = default;

void Sender::add(PeerId peer, std::uint64_t token, Transmit& transmit, Queued queued) {
  lanes_[peer] = std::unique_ptr<Lane>(new Lane{*this, peer, token, transmit, std::move(queued)});
}

void Sender::wake(Lane& lane) {
  if (lane.in_turn || lane.lost || lane.under_way >= window_ || !lane.has_work()) return;
  lane.in_turn = true;
  turns_.push_back(&lane);
}

void Sender::message(PeerId peer, std::vector<std::byte> data) {
  const auto it = lanes_.find(peer);
  if (it == lanes_.end() || it->second->lost) return;
  it->second->said.push_back({Header{.kind = Kind::kMessage}, std::move(data)});
  wake(*it->second);
}

void Sender::send(PeerId peer, Job job) {
  const auto it = lanes_.find(peer);
  if (it == lanes_.end() || it->second->lost) return events_.push(Sent{peer, job.request, Status::kClosed});
  Lane& lane = *it->second;
  lane.jobs.push_back(std::move(job));
  if (lane.next == lane.jobs.end()) --lane.next;
  wake(lane);
}

void Sender::cancel(PeerId peer, std::uint64_t request) {
  const auto it = lanes_.find(peer);
  if (it == lanes_.end() || it->second->lost) return;
  Lane& lane = *it->second;
  const auto job =
      std::find_if(lane.next, lane.jobs.end(), [&](const Job& j) { return j.request == request; });
  if (job == lane.jobs.end()) return;
  job->failed = true;
  lane.said.push_back({Header{.kind = Kind::kEnd,
                              .status = Status::kClosed,
                              .request = job->request,
                              .generation = job->generation},
                       {}});
  if (job == lane.next) ++lane.next;
  settle(lane, job);
  wake(lane);
}

void Sender::lose(PeerId peer) {
  const auto it = lanes_.find(peer);
  if (it == lanes_.end() || it->second->lost) return;
  Lane& lane = *it->second;
  lane.lost = true;
  std::erase(turns_, &lane);
  lane.said.clear();
  lane.next = lane.jobs.end();
  for (auto job = lane.jobs.begin(); job != lane.jobs.end();) {
    job->failed = true;
    settle(lane, job++);
  }
}

bool Sender::idle(PeerId peer) const {
  const auto it = lanes_.find(peer);
  return it == lanes_.end() || it->second->under_way == 0;
}

void Sender::remove(PeerId peer) { lanes_.erase(peer); }

void Sender::settle(Lane& lane, std::list<Job>::iterator job) {
  if (!job->posted() || job->under_way != 0) return;
  if (!job->failed) counters_.add(Count::kBlocksSent, static_cast<std::uint64_t>(job->pieces.size()));
  lane.queued->fetch_sub(job->total + kCallCost, std::memory_order_relaxed);
  events_.push(Sent{lane.peer, job->request, job->failed ? Status::kClosed : Status::kOk});
  if (job == lane.next) ++lane.next;
  lane.jobs.erase(job);
}

bool Sender::pump() {
  bool sent = false;
  for (std::size_t turns = turns_.size(); turns != 0 && !turns_.empty(); --turns) {
    Lane& lane = *turns_.front();
    turns_.pop_front();
    lane.in_turn = false;
    sent |= take_turn(lane);
    wake(lane);
  }
  return sent || !turns_.empty();
}

bool Sender::take_turn(Lane& lane) {
  bool sent = false;
  lane.credit += static_cast<std::int64_t>(segment_);
  while (lane.credit > 0 && !lane.lost && lane.has_work() && lane.under_way < window_) {
    Operation& operation = next(lane);
    lane.credit -= static_cast<std::int64_t>(operation.bytes + sizeof operation.header);
    ++lane.under_way;
    if (operation.of_job) ++operation.job->under_way;
    const Outcome outcome = lane.transmit.transmit(operation);
    if (outcome != Outcome::kUnderWay) done(operation, outcome == Outcome::kDone);
    sent = true;
  }
  if (!lane.has_work())
    lane.credit = 0;
  else if (lane.under_way >= window_)
    counters_.add(Count::kStalls);
  return sent;
}

// REQUIRES: lane.has_work().
Operation& Sender::next(Lane& lane) {
  if (unused_.empty()) unused_.push_back(&operations_.emplace_back());
  Operation& operation = *unused_.back();
  unused_.pop_back();
  operation.lane = &lane;
  operation.count = operation.bytes = 0;
  operation.of_job = lane.said.empty();
  if (!operation.of_job) {
    operation.header = lane.said.front().header;
    operation.said = std::move(lane.said.front().data);
    lane.said.pop_front();
    operation.pieces[0] = {operation.said.data(), operation.said.size()};
    operation.bytes = operation.said.size();
    operation.count = operation.bytes != 0;
  } else {
    operation.job = lane.next;
    Job& job = *operation.job;
    operation.header = Header{.kind = job.begun ? Kind::kData : Kind::kBegin,
                              .request = job.request,
                              .generation = job.generation,
                              .offset = job.begun ? job.at : job.total};
    if (!job.begun) {
      operation.pieces[0] = {job.verdicts.data(), job.verdicts.size() * sizeof(Verdict)};
      operation.bytes = operation.pieces[0].iov_len;
      operation.count = 1;
      job.begun = true;
    } else {
      while (job.piece < job.pieces.size() && operation.bytes < segment_ &&
             operation.count < operation.pieces.size()) {
        const iovec& piece = job.pieces[job.piece];
        std::size_t bytes = std::min(piece.iov_len - job.within, segment_ - operation.bytes);
        if (job.within + bytes < piece.iov_len) bytes -= bytes % kCut;
        if (bytes == 0) break;
        operation.pieces[operation.count++] = {static_cast<std::byte*>(piece.iov_base) + job.within, bytes};
        operation.bytes += bytes;
        job.within += bytes;
        if (job.within == piece.iov_len) {
          ++job.piece;
          job.within = 0;
        }
      }
      job.at += operation.bytes;
    }
    if (job.posted()) ++lane.next;
  }
  operation.header.token = lane.token;
  return operation;
}

void Sender::done(Operation& operation, bool ok) {
  Lane& lane = *operation.lane;
  --lane.under_way;
  if (operation.of_job) {
    Job& job = *operation.job;
    --job.under_way;
    if (!ok && !job.failed) {
      job.failed = true;
      if (operation.job == lane.next) ++lane.next;
    } else if (ok && operation.header.kind == Kind::kData) {
      counters_.add(Count::kBytesSent, operation.bytes);
    }
    settle(lane, operation.job);
  } else if (operation.header.kind == Kind::kMessage) {
    if (ok) counters_.add(Count::kMessagesSent);
    lane.queued->fetch_sub(operation.bytes + kCallCost, std::memory_order_relaxed);
  }
  release(operation);
  wake(lane);
}

void Sender::release(Operation& operation) {
  operation.said = {};
  unused_.push_back(&operation);
}

}  // namespace kvarter::ucx
