(* A counter and an array, watched in Modula-2. *)
MODULE Shelf;

FROM SYSTEM IMPORT ADR ;

VAR
   total: LONGINT;
   nums : ARRAY [1..6] OF INTEGER;

PROCEDURE ready ;
BEGIN
END ready ;

PROCEDURE add (n: LONGINT) ;
BEGIN
   total := total + n;
   nums[3] := nums[3] + 1
END add ;

BEGIN
   total := 0;
   nums[3] := 3;
   ready;
   add (5);
   add (900)
END Shelf.
