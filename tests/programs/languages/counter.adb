with Ada.Command_Line;
with Shelf;

procedure Counter is
   use type Long_Integer;
begin
   Shelf.Ready;
   Shelf.Add (5);
   Shelf.Add (900);
   if Shelf.Total = 905 then
      Ada.Command_Line.Set_Exit_Status (3);
   end if;
end Counter;
