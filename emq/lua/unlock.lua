-- unlock: let a job be removed again, if it was locked under this token.
--
-- KEYS[1] row    hash  emq:{queue}:job:<id>; it names the base of DERIVES too
-- ARGV[1] token  int   the token that locked it
--
-- RETURNS
--   1  unlocked
--   0  not locked, or under another token; nothing written
--
-- COST O(1).

-- INCLUDE row
-- INCLUDE locks

if not is_locked_by(row, ARGV[1]) then
  return 0
end
unlock(row)
return 1
