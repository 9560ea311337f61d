package body Shelf is
   procedure Ready is
   begin
      null;
   end Ready;

   procedure Add (N : Long_Integer) is
   begin
      Total := Total + N;
      Nums (3) := Nums (3) + 1;
      B.Weight := B.Weight + 2.5;
   end Add;
end Shelf;
