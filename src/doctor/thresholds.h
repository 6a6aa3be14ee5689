// The limits of all checks, each with its reason.
#pragma once

#include <cstddef>

namespace lockstep::doctor {

// ---- Devices --------------------------------------------------------------------------------------------------------
// A step ends when its slowest rank does. Equal devices agree to within about 5 %, and turbo clocks and neighbours on a
// shared node add as much again, so 15 % is a loss that has a cause, and 40 % is a broken or shared device.
inline constexpr double kSlowerThanMedianWarns = 0.15, kSlowerThanMedianFails = 0.40;
// The free part of the memory of a device or node before training starts. If less is free, another process usually uses
// it.
inline constexpr double kFreeMemoryWarns = 0.5, kFreeMemoryFails = 0.1;
// The clock under load, as a part of the maximum clock. Power limits of data centres lower it by a third at most.
inline constexpr double kClockWarns = 0.6;
// Corrected ECC errors since the driver was loaded: single ones are normal, thousands indicate a failing module.
inline constexpr unsigned long long kCorrectedErrorsWarn = 1000;

// ---- Processors -----------------------------------------------------------------------------------------------------
// Cores that other processes keep busy. Daemons use a few per cent of a core; half a core means that a program is
// running.
inline constexpr double kOtherLoadWarns = 0.5;

// ---- Links ----------------------------------------------------------------------------------------------------------
// All-reduces and pairs of ranks, as part of what the link should give. NCCL and MPI reach 70 to 95 % of InfiniBand and
// of slow Ethernet, and half of fast Ethernet through TCP. A fifth means another interface, or a link that
// renegotiated.
inline constexpr double kLinkWarns = 0.5, kLinkFails = 0.2;
// A single TCP connection moves about 20 Gbit/s on current processors, whatever the link.
inline constexpr double kTcpBytesPerSecond = 20e9 / 8;
// A pair of ranks compared with the median of the pairs of the same kind (in a node, between nodes), which differ by
// less than a fifth on a network without oversubscription.
inline constexpr double kPairWarns = 0.6, kPairFails = 0.3;
// The time of an all-reduce of 8 bytes. Ranks of a node need microseconds, InfiniBand tens of them, and TCP a few
// hundred. With more, the small all-reduces of a step, such as those of the loss, are as long as its computation.
inline constexpr double kLatencyWarnsSeconds = 5e-3, kLatencyFailsSeconds = 100e-3;
// Part of the bytes of an all-reduce that an interface must have sent to be the one in use.
inline constexpr double kInterfaceInUse = 0.25;

// ---- Clocks ---------------------------------------------------------------------------------------------------------
// NTP keeps nodes within milliseconds. With a second or more, make and rsync misjudge the ages of files, and log lines
// are in the wrong order.
inline constexpr double kClockSkewWarnsSeconds = 0.1, kClockSkewFailsSeconds = 1;

// ---- File systems ---------------------------------------------------------------------------------------------------
// MB/s of one node. A checkpoint of ResNet-50 (200 MB) then takes 4 s and 20 s; a laptop's disk writes 500.
inline constexpr double kWriteWarns = 50, kWriteFails = 10;
inline constexpr double kReadWarns = 50, kReadFails = 10;
// Files that one node creates, looks up and removes per second. Parallel file systems reach some hundreds to thousands.
inline constexpr double kMetadataWarns = 50, kMetadataFails = 5;
// Free space in bytes: three checkpoints of ResNet-50 and the log, and the least with which one fits.
inline constexpr double kFreeSpaceWarns = 2e9, kFreeSpaceFails = 0.3e9;
// The used part of the quota.
inline constexpr double kQuotaUsedWarns = 0.9;

// ---- Limits of a process --------------------------------------------------------------------------------------------
inline constexpr double kOpenFilesFails = 1024;
// RDMA pins the memory of its buffers. Without InfiniBand, little is pinned.
inline constexpr double kLockedMemoryFails = 64e6;
// Free space in /dev/shm for each rank of the node: the gradients of ResNet-50 (102 MB in fp32), and those of a
// language model with 500 million parameters.
inline constexpr double kSharedMemoryFails = 128e6, kSharedMemoryWarns = 2e9;

}  // namespace lockstep::doctor
