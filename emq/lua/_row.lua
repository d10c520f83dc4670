-- row: what a job's row says by its name, <base>job:<id>, since every id has 14 bytes.

local row = KEYS[1]
local base, id = string.sub(row, 1, -19), string.sub(row, -14)
