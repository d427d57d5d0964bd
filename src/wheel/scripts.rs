//! The scripts that Redis runs. Each is atomic and uses keys of one shard (or one node) only.

/// All scripts, for servers that do not have them loaded.
pub(super) const ALL: [&str; 7] = [APPEND, TAKE, BUILD, LOADED, ADOPT, EXPRESS, WITNESS];

/// Appends pointers to a slot, unless the slot was taken.
///
/// KEYS: standing, slot. ARGV: field of the level's mark, tick, when the slot expires (Unix seconds by the store's
/// clock), packed pointers… Returns the number of pointers appended, 0 if the slot was taken, −1 if there is no
/// wheel. Atomic with [`TAKE`], so that no pointer is appended to a slot after its take. The slot expires so long
/// from now as it does from the mark of the seconds, which follows the store's clock: Redis's own clock may differ
/// from that by any amount.
pub(super) const APPEND: &str = "
local s = redis.call('HMGET', KEYS[1], ARGV[1], 's')
if not s[1] then return -1 end
if tonumber(ARGV[2]) <= tonumber(s[1]) then return 0 end
local n = redis.call('RPUSH', KEYS[2], unpack(ARGV, 4))
if n == #ARGV - 3 then redis.call('EXPIRE', KEYS[2], ARGV[3] - s[2]) end
return #ARGV - 3";

/// Takes a page of a slot: raises the level's mark and the beat, and returns the page.
///
/// KEYS: standing, slot. ARGV: incarnation, epoch, beat, field of the level's mark, tick, first and last
/// position of the page. Returns {1, beat, pointers}; or, with an empty page, 0 if the wheel has another epoch,
/// −1 if it has another incarnation, −2 if its beat is lower than ARGV's. Atomic with [`APPEND`]. The slot
/// stays until it is handed over, so that a take whose answer was lost can be repeated.
pub(super) const TAKE: &str = "
local s = redis.call('HMGET', KEYS[1], 'i', 'e', 'b', ARGV[4])
if s[1] ~= ARGV[1] then return {-1, 0, {}} end
if s[2] ~= ARGV[2] then return {0, 0, {}} end
if tonumber(s[3]) < tonumber(ARGV[3]) then return {-2, 0, {}} end
local beat = tonumber(s[3]) + 1
redis.call('HSET', KEYS[1], 'b', beat)
if tonumber(ARGV[5]) > tonumber(s[4]) then redis.call('HSET', KEYS[1], ARGV[4], ARGV[5]) end
return {1, beat, redis.call('LRANGE', KEYS[2], ARGV[6], ARGV[7])}";

/// Builds a shard's wheel.
///
/// KEYS: standing, slots to empty… ARGV: the epoch, then the fields of the standing and their values. Returns 1, or 0 if
/// the wheel has a higher epoch: a later owner has it. Atomic, so that a node that has lost the shard without knowing it
/// does not empty slots that the later owner has filled. A server without room empties the slots all the same, which
/// makes room, and has no wheel then.
pub(super) const BUILD: &str = "
local e = redis.call('HGET', KEYS[1], 'e')
if e and tonumber(e) > tonumber(ARGV[1]) then return 0 end
local set = redis.pcall('HSET', KEYS[1], unpack(ARGV, 2))
local failed = type(set) == 'table' and set.err
for n = failed and 1 or 2, #KEYS do redis.call('UNLINK', KEYS[n]) end
if failed then return set end
return 1";

/// Notes up to where a shard's wheel is loaded, unless it has another epoch.
///
/// KEYS: standing. ARGV: epoch, the moment. Returns 1, or 0 if it has. Atomic, so that nobody speaks for the next owner.
pub(super) const LOADED: &str = "
if redis.call('HGET', KEYS[1], 'e') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'l', ARGV[2])
return 1";

/// Raises the epoch of a shard's wheel.
///
/// KEYS: standing. ARGV: epoch. Returns 1, or 0 if there is no wheel or its epoch is not lower. Atomic, so that
/// of two owners the one with the higher epoch has the wheel, whatever their order.
pub(super) const ADOPT: &str = "
local e = redis.call('HGET', KEYS[1], 'e')
if not e or tonumber(e) >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'e', ARGV[1])
return 1";

/// Appends pointers to a node's express list, unless it is full.
///
/// KEYS: express list. ARGV: the most entries of the list, seconds after which an unread list expires, entries…
/// Returns 1, or 0 if the list is full. Atomic, so that the bound holds for any number of senders.
pub(super) const EXPRESS: &str = "
if redis.call('LLEN', KEYS[1]) + #ARGV - 2 > tonumber(ARGV[1]) then return 0 end
redis.call('RPUSH', KEYS[1], unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1";

/// Remembers the highest incarnation of the cold store.
///
/// KEYS: witness. ARGV: incarnation. Returns the highest so far. Atomic, so that a node that is behind does not
/// lower it.
pub(super) const WITNESS: &str = "
local n = tonumber(redis.call('GET', KEYS[1]) or 0)
if tonumber(ARGV[1]) <= n then return n end
redis.call('SET', KEYS[1], ARGV[1])
return tonumber(ARGV[1])";
