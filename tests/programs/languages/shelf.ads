--  A counter, an array and a record, watched in Ada.
package Shelf is
   type Numbers is array (1 .. 6) of Integer;
   type Box is record
      Id     : Integer;
      Weight : Long_Float;
   end record;
   Total : Long_Integer := 0;
   Nums  : Numbers := (1, 2, 3, 4, 5, 6);
   B     : Box := (1, 0.0);
   procedure Ready;
   procedure Add (N : Long_Integer);
end Shelf;
