create table articles (
    id integer primary key,
    title text not null,
    body text
);

insert into articles values
    (1, 'Slots', '<p>A replication <b>slot</b> keeps what a consumer has not read.</p>'),
    (2, 'Copies', '<p>The first copy is read in the snapshot of the slot.</p>'),
    (3, 'Trucks', '<p>A truck is a folder with a YAML file.</p>');
