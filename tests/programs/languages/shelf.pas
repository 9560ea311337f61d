{ A counter, an array and a record, watched in Pascal. }
program shelf;

type
  box = record
    id: longint;
    weight: double;
  end;

var
  total: int64;
  nums: array[1..6] of longint;
  b: box;

procedure ready;
begin
end;

procedure add(n: int64);
begin
  total := total + n;
  nums[3] := nums[3] + 1;
  b.weight := b.weight + 2.5;
end;

begin
  total := 0;
  nums[3] := 3;
  b.weight := 0;
  ready;
  add(5);
  add(900);
  if total = 905 then
    halt(3);
end.
