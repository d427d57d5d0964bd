//! The scripts that Redis runs. Each is atomic and touches keys of one shard (or one node) only.

/// All of them, to be loaded where they are not known.
pub(super) const ALL: [&str; 4] = [APPEND, TAKE, ADOPT, EXPRESS];

/// Appends pointers to a slot unless it was taken.
///
/// KEYS: standing, slot. ARGV: field of the level's mark, tick, when the slot may be forgotten (Unix
/// seconds), packed pointers… Returns the number kept, 0 when the slot was taken, −1 when there is no wheel.
/// Atomic with [`TAKE`], so that no pointer falls between a take and its slot.
pub(super) const APPEND: &str = "
local mark = redis.call('HGET', KEYS[1], ARGV[1])
if not mark then return -1 end
if tonumber(ARGV[2]) <= tonumber(mark) then return 0 end
local n = redis.call('RPUSH', KEYS[2], unpack(ARGV, 4))
if n == #ARGV - 3 then redis.call('EXPIREAT', KEYS[2], ARGV[3]) end
return #ARGV - 3";

/// Takes a page of a slot: raises the level's mark and the beat, and reads.
///
/// KEYS: standing, slot. ARGV: incarnation, epoch, beat, field of the level's mark, tick, first and last
/// position of the page. Returns {1, beat, pointers}, or without the two {0} when the owner is another, {−1} when the
/// incarnation is another, {−2} when the beat went back. Atomic with [`APPEND`]; the slot stays until it is
/// handed over, so that a take whose answer was lost can be repeated.
pub(super) const TAKE: &str = "
local s = redis.call('HMGET', KEYS[1], 'i', 'e', 'b', ARGV[4])
if s[1] ~= ARGV[1] then return {-1, 0, {}} end
if s[2] ~= ARGV[2] then return {0, 0, {}} end
if tonumber(s[3]) < tonumber(ARGV[3]) then return {-2, 0, {}} end
local beat = tonumber(s[3]) + 1
redis.call('HSET', KEYS[1], 'b', beat)
if tonumber(ARGV[5]) > tonumber(s[4]) then redis.call('HSET', KEYS[1], ARGV[4], ARGV[5]) end
return {1, beat, redis.call('LRANGE', KEYS[2], ARGV[6], ARGV[7])}";

/// Raises the epoch of a shard's wheel.
///
/// KEYS: standing. ARGV: epoch. Returns 1, or 0 when there is no wheel or its epoch is not lower. Atomic, so
/// that of two owners the one with the higher epoch keeps it, whoever comes last.
pub(super) const ADOPT: &str = "
local e = redis.call('HGET', KEYS[1], 'e')
if not e or tonumber(e) >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'e', ARGV[1])
return 1";

/// Gives pointers to a node unless too many wait there.
///
/// KEYS: express list. ARGV: the most that may wait, seconds after which an unread list is forgotten,
/// pointers… Returns 1, or 0 when the list is full. Atomic, so that the bound holds for any number of
/// givers.
pub(super) const EXPRESS: &str = "
if redis.call('LLEN', KEYS[1]) + #ARGV - 2 > tonumber(ARGV[1]) then return 0 end
redis.call('RPUSH', KEYS[1], unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1";
