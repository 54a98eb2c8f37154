//! Adoptions that meet, or die.

use super::*;

/// Both were served, and backups of one were restored into the other.
#[test]
fn two_adoptions_at_once_gave_one_state_directory_to_two_workspaces() {
    for _ in 0..12 {
        let two = two();
        std::fs::remove_dir_all(&two.own).unwrap();
        let third = two.other.with_file_name("third");
        std::fs::create_dir(&third).unwrap();
        let adopt = |root: &PathBuf| {
            let command = ["fs", "stat", ".", "--workspace", text(root), "--adopt", text(&two.own)];
            let mut command = two.world.command(&command);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let started = [&two.other, &third].map(adopt);
        let ended = started.map(|mut child| child.wait().unwrap().success());
        assert_eq!(ended.iter().filter(|is_adopted| **is_adopted).count(), 1, "{ended:?}");
        // The first start, and that of the one that adopted it.
        assert_eq!(two.starts().len(), 2);
        let owner = if ended[0] { &two.other } else { &third };
        two.world.run(&["fs", "stat", ".", "--workspace", text(owner)]).ok();
    }
}

/// The file `workspace` had to be removed by hand.
#[test]
fn an_adoption_that_died_before_its_file_was_written_is_finished() {
    let two = two();
    let moved = two.own.with_file_name("moved");
    std::fs::rename(&two.own, &moved).unwrap();
    let adopt = ["fs", "stat", ".", "--workspace", text(&moved), "--adopt", text(&two.own)];
    two.world.run(&adopt).ok();
    std::fs::write(two.world.state().join("workspace"), text(&two.own)).unwrap();
    for command in [&adopt[..], &adopt[..5]] {
        two.world.run(command).ok();
        let noted = std::fs::read_to_string(two.world.state().join("workspace")).unwrap();
        assert_eq!(noted.trim_end(), text(&moved));
    }
    assert_eq!(two.world.run(&["fs", "stat", ".", "--workspace", text(&two.other)]).code, 1);
}

/// Its record was written, and then no start was possible.
#[test]
fn a_move_after_an_adoption_that_died_is_adopted() {
    let two = two();
    let (moved, again) = (two.own.with_file_name("moved"), two.own.with_file_name("again"));
    std::fs::rename(&two.own, &moved).unwrap();
    let adopt = ["fs", "stat", ".", "--workspace", text(&moved), "--adopt", text(&two.own)];
    two.world.run(&adopt).ok();
    std::fs::write(two.world.state().join("workspace"), text(&two.own)).unwrap();
    std::fs::rename(&moved, &again).unwrap();
    let adopt = ["fs", "stat", ".", "--workspace", text(&again), "--adopt", text(&moved)];
    for command in [&adopt[..], &adopt[..5]] {
        two.world.run(command).ok();
    }
}
